package egress

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"palyra/conformance/world"
)

// TestLostInTransfer: palyra-egress is killed while bytes pass. The call fails by name and has ended
// when it says so, the host sees the end of the connection, and the next call's bytes are its own.
func TestLostInTransfer(t *testing.T) {
	b := begun(t)
	const size = 1 << 20
	want := fmt.Sprintf("%d %x <nil>\n", size, sha256.Sum256(make([]byte, size)))
	daemon := b.daemon()
	for _, via := range []string{"palyra exec", "palyrad"} {
		for way, argv := range map[string][]string{
			"down": {"curl", "-sS", "-o", "/dev/null", "http://packages.example/forever"},
			"up":   {"curl", "-sS", "-T", "-", "http://packages.example/sum"},
		} {
			t.Run(via+" "+way, func(t *testing.T) {
				b := b.in(t)
				if via == "palyra exec" {
					b.socket = ""
				}
				b.w.Forget()
				b.w.Set("packages.example", world.Addrs(world.Web))
				if way == "up" {
					argv = []string{"bash", "-c", "yes lost | " + strings.Join(argv, " ")}
				}
				running := b.start([]string{"packages.example:80"}, nil, argv...)
				const some = 4 << 20
				passed := func() (n int64) {
					for _, c := range b.w.Connections(world.Web, 80) {
						n += c.Read + c.Written
					}
					return n
				}
				b.w.Until(func() bool { return passed() > some })
				of := running.pid
				if b.socket != "" {
					of = daemon
				}
				kill(t, "palyra-egress", of)
				r := running.wait()
				if r.status == 0 || r.outcome != "failed" || r.reason != "egress_lost" || !strings.Contains(r.stderr, "palyra-egress ended before the call") {
					t.Error(r)
				}
				if out, err := b.outside("pgrep", "-f", "packages.example/(forever|sum)"); err == nil {
					t.Errorf("the call's program outlived it: %s", out)
				}
				b.w.Until(func() bool { return b.w.Connections(world.Web, 80)[0].Closed })
				n := passed()
				next := b.exec([]string{"packages.example:80"}, nil, "bash", "-c", fmt.Sprintf("head -c %d /dev/zero | curl -sS -T - http://packages.example/sum", size))
				if next.status != 0 || next.stdout != want || len(next.egress.Connections) != 1 {
					t.Error(next)
				}
				if lost := b.w.Connections(world.Web, 80)[0]; lost.Read+lost.Written != n {
					t.Errorf("%d bytes passed after the end", lost.Read+lost.Written-n)
				}
			})
		}
	}
}
