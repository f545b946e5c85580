package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const year = 365 * 24 * time.Hour

// step sets the machine's wall clock, as a time service or an operator does.
func step(d time.Duration) error {
	tv := unix.NsecToTimeval(time.Now().Add(d).UnixNano())
	return os.NewSyscallError("settimeofday", unix.Settimeofday(&tv))
}

// clock sets the clock a year ahead, back, a year behind, and right again, while
// palyrad serves and around its restarts. There are three tokens: one of 30 days,
// one whose time is over, and one that was revoked.
func (m *manager) clock() []check {
	const right, ahead = "active, expired, revoked", "expired, expired, revoked"
	return []check{
		{"clock/tokens", func() (string, error) { return "", errors.Join(m.mintAll(), m.tokens(right, "kept", "short", "dead")) }},
		{"clock/ahead", func() (string, error) { return m.jump(year, ahead) }},
		{"clock/back", func() (string, error) { return "", errors.Join(step(-year), m.tokens(right, "kept")) }},
		{"clock/behind", func() (string, error) { return m.jump(-year, right) }},
		{"clock/restart-behind", func() (string, error) { return m.anew(right) }},
		{"clock/kill-ahead", func() (string, error) {
			id, err := m.call1("kept for long")
			if err == nil {
				// So many starts aren't its fault.
				_, err = m.do("systemctl", "reset-failed", "palyrad.service")
			}
			if err == nil {
				err = step(2 * year)
			}
			if err != nil {
				return "", err
			}
			got, err := m.kill()
			if err == nil {
				// Retention has run at the start, and left it.
				_, err = m.as(m.alice, "palyra", "runs", "show", id)
			}
			return got, errors.Join(err, m.tokens(ahead, "kept"))
		}},
		{"clock/right", func() (string, error) {
			if err := step(-year); err != nil {
				return "", err
			}
			return m.anew(right)
		}},
	}
}

// mintAll makes root's tokens, and waits until the short one is over.
func (m *manager) mintAll() error {
	for _, t := range [][2]string{{"kept", "30d"}, {"short", "1s"}, {"dead", "30d"}} {
		out, err := m.do("palyra", "token", "create", "--json", "--scope", "session.read", "--ttl", t[1], t[0])
		if err == nil {
			err = os.WriteFile("/tmp/token-"+t[0], []byte(regexp.MustCompile(`palyra_\w+`).FindString(out)), 0o600)
		}
		if err == nil && t[0] == "dead" {
			_, err = m.do("palyra", "token", "revoke", regexp.MustCompile(`tok_\w+`).FindString(out))
		}
		if err != nil {
			return err
		}
	}
	return until("a token ends", func() bool { return m.states()["short"] == "expired" })
}

// shown says whether a token works, over HTTP. palyrad counts those that don't, and after a
// few of them it answers no one.
func (m *manager) shown(name string) (string, error) {
	_, err := m.do("palyra", "status", "--json", "--url", "http://127.0.0.1:7142", "--token-file", "/tmp/token-"+name)
	switch {
	case err == nil:
		return "opens", nil
	case strings.Contains(err.Error(), `"unauthenticated"`):
		return "does not open", nil
	}
	return "", err
}

// states are those that palyrad lists the tokens in.
func (m *manager) states() map[string]string {
	var doc struct {
		Tokens []struct{ Name, State string }
	}
	said := make(map[string]string)
	if err := m.object(nil, &doc, "palyra", "token", "ls", "--json"); err != nil {
		said["error"] = err.Error()
	}
	for _, t := range doc.Tokens {
		said[t.Name] = t.State
	}
	return said
}

// tokens says which tokens are good, and shows some of them.
func (m *manager) tokens(want string, show ...string) error {
	said := m.states()
	err := same("tokens", fmt.Sprintf("%s, %s, %s", said["kept"], said["short"], said["dead"])+said["error"], want)
	for _, name := range show {
		got, serr := m.shown(name)
		opens := map[bool]string{true: "opens", false: "does not open"}[said[name] == "active"]
		err = errors.Join(err, serr, same("what token "+name+" does", got, opens))
	}
	return err
}

// call1 makes a call with an idempotency key and returns the id of its run.
func (m *manager) call1(key string) (string, error) {
	var doc struct{ Run run }
	err := m.object(m.alice, &doc, "palyra", "call", "--json", "--key", strings.ReplaceAll(key, " ", "-"), "palyra.echo", `{"text":"once"}`)
	if err == nil && doc.Run.State != "done" {
		err = errors.New(doc.Run.String())
	}
	return doc.Run.ID, err
}

// jump sets the clock while a program runs, a question waits whose time is 10
// seconds, and a client is about to repeat a call. It says what becomes of the
// program, of a yes to the question, and of the call that asked.
func (m *manager) jump(d time.Duration, tokens string) (string, error) {
	key := fmt.Sprintf("before %v", d)
	first, err := m.call1(key)
	if err != nil {
		return "", err
	}
	asked := make(chan run, 1)
	go func() {
		var doc struct{ Run run }
		// Its status is the call's.
		out, _ := m.as(m.alice, "palyra", "call", "--json", "--max-wall", "10s", "fs.write_file",
			`{"workspace":"reports","path":"clock.txt","mode":"create","content":"hi"}`)
		_ = json.Unmarshal([]byte(out), &doc) // an empty run is seen as one
		asked <- doc.Run
	}()
	question, capsule, err := m.pending()
	if err != nil {
		return "", err
	}
	id, err := m.begin(3000)
	if err == nil {
		err = step(d)
	}
	if err != nil {
		return "", err
	}
	answer := "none" // a step back must not give it more time
	if d > 0 {
		_, err := m.do("palyra", "approvals", "approve", "--capsule", capsule, question)
		// On a host that is busy it may come after the end of the question by either.
		if err == nil || !strings.Contains(err.Error(), "approval_expired") && !strings.Contains(err.Error(), "it is expired") {
			return "", fmt.Errorf("a yes after the time: %v", err)
		}
		answer = "refused"
	}
	if err := m.tokens(tokens, "kept", "short"); err != nil {
		return "", err
	}
	again, err := m.call1(key)
	if err == nil {
		err = same("the run of a call that was made before", again, first)
	}
	if err != nil {
		return "", err
	}
	got, err := m.became(id)
	if err != nil {
		return "", err
	}
	select {
	case r := <-asked:
		got += "; answer " + answer + ", " + r.String()
	case <-time.After(60 * time.Second): // 10 seconds by the monotonic clock
		return "", errors.New("the question still waits")
	}
	if _, err := os.Stat("/srv/palyra/reports/clock.txt"); err == nil {
		return "", errors.New("what nobody approved was done")
	}
	return got, m.good()
}

// good makes a call, and verifies its receipt elsewhere.
func (m *manager) good() error {
	r, err := m.tool("clock", "process.run", `{"argv":["/usr/bin/id","-u"]}`)
	if err == nil && r.State != "done" {
		err = errors.New(r.String())
	}
	if err == nil {
		_, err = m.as(m.alice, "palyra", "attest", "verify", "--trust", "/tmp/trust", "/tmp/clock.json")
	}
	return err
}

// anew restarts palyrad, looks at the tokens and makes a call and an approval. It
// says what status warns of.
func (m *manager) anew(tokens string) (string, error) {
	if _, err := m.do("systemctl", "restart", "palyrad.service"); err != nil {
		return "", err
	}
	s, err := m.status()
	if err != nil || s.Mode != "normal" {
		return "", fmt.Errorf("status %+v, %w", s, err)
	}
	name := fmt.Sprintf("anew-%d.txt", time.Now().Unix())
	r, err := m.answered("anew", "fs.write_file", `{"workspace":"reports","path":"`+name+`","mode":"create","content":"hi"}`)
	if err == nil && r.State != "done" {
		err = errors.New(r.String())
	}
	got := "no warning"
	for _, w := range s.Warnings {
		got, _, _ = strings.Cut(w, ":")
	}
	return got, errors.Join(err, m.tokens(tokens, "kept"), m.good())
}
