package main

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"palyra/hub/config"
	"palyra/internal/fault"
	"palyra/internal/sdnotify"
	broker "palyra/isolate/egress/client"
)

// activatedEgress is the name of the socket at which a palyra-egress that the service manager
// starts connects.
const activatedEgress = "egress"

// openEgress finds the way to hosts for calls that name some, and returns the sockets that are for
// others. palyrad can start and connect to nothing later: a palyra-egress that dies is started anew
// by the service manager, which then connects it to the passed socket, or by a process of its own.
func (d *daemon) openEgress(cfg *config.Config, passed []sdnotify.Listener) (rest []sdnotify.Listener, err error) {
	i := slices.IndexFunc(passed, func(l sdnotify.Listener) bool { return l.Name == activatedEgress })
	if i >= 0 {
		l, ok := passed[i].Listener.(*net.UnixListener)
		if !ok || l.Addr().Network() != "unixpacket" {
			return passed, fault.New(fault.BadState, "config_invalid", fmt.Sprintf("take socket %q", activatedEgress), errors.New("want a unix socket for sequential packets"))
		}
		rest = slices.Delete(slices.Clone(passed), i, i+1)
		if !cfg.Egress.Enabled || d.safe {
			l.Close()
			return rest, nil
		}
		b := broker.Listen(l)
		d.opened(func() { b.Close() })
		d.egress = b
		return rest, nil
	}
	if !cfg.Egress.Enabled || d.safe {
		return passed, nil
	}
	path, err := d.helper("palyra-egress")
	if cfg.Cell.Starter != "" { // a service that starts nothing, and whose sockets lead nowhere
		err = fault.New(fault.Refused, "egress_lost", "find palyra-egress", errors.New("the service manager passed no socket for it"))
	}
	if err == nil {
		var b *broker.Process
		if b, err = broker.Keep(path); err == nil {
			d.opened(func() { b.Close() })
			d.egress = b
			return passed, nil
		}
	}
	// Calls without hosts need none.
	d.log.Warn("calls that name hosts will be refused", "error", err.Error(), "hint", "palyra-egress stands beside palyrad, or is a service whose socket palyrad gets (docs/EGRESS.md); egress.enabled = false says that none is wanted")
	return passed, nil
}
