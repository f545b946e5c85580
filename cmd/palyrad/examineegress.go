package main

import (
	"context"
	"time"

	"palyra/hub"
	"palyra/hub/config"
	broker "palyra/isolate/egress/client"
)

// egressTime is how long doctor waits for palyra-egress.
const egressTime = 5 * time.Second

// examineEgress finds out whether calls can reach hosts, if they are to.
func (d *daemon) examineEgress(cfg *config.Config, finding func(name string, ok bool, detail, how, cost, fix string) hub.Finding) hub.Finding {
	const name, how = "egress", "a session of palyra-egress, opened and closed"
	if !cfg.Egress.Enabled {
		return finding(name, true, "off, as egress.enabled says: calls that name hosts are refused", "the configuration", "", "")
	}
	const fix = "install palyra-egress beside palyrad, then restart palyrad; as a service: systemctl status palyra-egress palyrad-egress.socket"
	if d.egress == nil { // nothing is lost: it never was there
		return finding(name, false, "palyrad was started without palyra-egress: calls that name hosts are refused", "looked for at the start", "", fix)
	}
	detail := "palyra-egress answers"
	err := d.tryEgress()
	if err != nil {
		detail = err.Error()
	}
	return finding(name, err == nil, detail, how, "calls that name hosts are refused", fix)
}

// tryEgress opens and closes a session.
func (d *daemon) tryEgress() error {
	ctx, cancel := context.WithTimeout(context.Background(), egressTime)
	defer cancel()
	s, err := d.egress.Open(ctx, new(broker.Order))
	if err == nil {
		_, err = s.Close()
	}
	return err
}
