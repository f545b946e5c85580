package main

import (
	"bytes"
	"strings"
	"testing"

	"palyra/cmd/internal/connect"
	"palyra/hub"
	"palyra/transport/api/apitest"
)

// TestDevices: devices and passkeys are listed, shown and ended, and completion knows their ids, with what the
// hub said in JSON, too.
func TestDevices(t *testing.T) {
	h := apitest.NewHub()
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"devices ls", 0, "laptop  active  uid:0      2001-09-09 01:46:40  -     run.start\n"},
		{"devices ls --json", 0, `"devices": [`},
		{"devices show laptop", 0, "  certificate  sha256:01, good until 2001-09-09 01:46:40\n"},
		{"devices show --json laptop", 0, `"token": "tok_00"`},
		{"devices revoke laptop", 0, "laptop  revoked  uid:0 "},
		{"devices revoke --json laptop", 0, `"revoked": "2001-09-09T01:46:41Z"`},
		{"devices renew", 2, "hint: name its folder: --device DIR"},
		{"devices root", 0, "sha256:00  in_force  2001-09-09 01:46:40"},
		{"devices root --replace", 0, "sha256:01  introduced  2001-09-10 01:46:40  2001-09-10 01:46:40  2001-09-10 01:46:40\n"},
		{"devices root --replace --at-once --json", 0, `"state": "previous"`},
		{"devices root --at-once", 2, "--replace"},
		{"devices show phone", 1, "hint: palyra devices ls"},
		{"devices rm laptop", 0, "removed laptop\n"},
		{"devices rm phone", 1, "not_found"},
		{"devices revoke phone", 1, "not_found"},
		{"devices revoke", 2, "ID"},
		{"complete device", 0, "laptop\n"},
		{"passkeys ls", 0, "psk_0123456789abcdef0123456789abcdef  laptop  active  uid:0 "},
		{"passkeys ls --json", 0, `"passkeys": [`},
		{"passkeys revoke psk_0123", 0, "revoked"},
		{"passkeys revoke psk_00000000000000000000000000000000", 1, "hint: palyra passkeys ls"},
		{"complete passkey", 0, apitest.Passkey + "\n"},
	} {
		var out, errs bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, getenv: func(string) string { return "" },
			dial: func(connect.Target) (hub.Hub, error) { return h, nil }}
		if status := a.run(t.Context(), strings.Fields(c.args)); status != c.status || !strings.Contains(out.String()+errs.String(), c.want) {
			t.Errorf("%s: status %d, want %d with %q\n%s%s", c.args, status, c.status, c.want, &out, &errs)
		}
	}
}
