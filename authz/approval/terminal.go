package approval

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Terminal asks on a terminal. Only a line that says exactly "yes" approves;
// anything else, an empty line, a longer line or the end of input denies.
//
// It reads byte by byte and not past the line, so what follows on In is left
// for others. Where In has a read deadline (a pollable file), the end of ctx
// interrupts the read; where it has none, Ask returns and the read ends with
// the next line, whose answer is thrown away.
//
// It cannot tell typed-ahead input from an answer: the caller discards pending
// input of a real terminal before Ask, and must not give the program's own
// stdin as In.
type Terminal struct {
	In   io.Reader
	Out  io.Writer
	Name string // who sits there, for the record
}

var _ Approver = (*Terminal)(nil)

// maxAnswer is the longest line that is looked at.
const maxAnswer = 64

// Ask shows r and reads one line.
func (t *Terminal) Ask(ctx context.Context, r Request) (Answer, error) {
	none := Answer{Approver: t.Name, Surface: "terminal"}
	if t.In == nil || t.Out == nil {
		return none, errors.New("no terminal")
	}
	if _, err := io.WriteString(t.Out, Card(r)+"Type \"yes\" to approve, anything else denies: "); err != nil {
		return none, fmt.Errorf("write to terminal: %w", err)
	}
	line, err := t.readLine(ctx)
	if ctx.Err() != nil {
		io.WriteString(t.Out, "\nNo answer: denied.\n")
		return none, ctx.Err()
	}
	if err != nil && err != io.EOF {
		return none, fmt.Errorf("read from terminal: %w", err)
	}
	// A line that the input's end cut short was not finished by a person.
	none.Approved = err == nil && strings.TrimSuffix(line, "\r") == "yes"
	return none, nil
}

// readLine reads up to a newline or the end of ctx.
func (t *Terminal) readLine(ctx context.Context) (string, error) {
	if d, ok := t.In.(interface{ SetReadDeadline(time.Time) error }); ok && d.SetReadDeadline(time.Time{}) == nil {
		set := make(chan struct{}) // closed once the deadline has been moved
		stop := context.AfterFunc(ctx, func() {
			d.SetReadDeadline(time.Unix(1, 0))
			close(set)
		})
		line, err := readLine(t.In)
		if !stop() {
			<-set
			d.SetReadDeadline(time.Time{})
		}
		return line, err
	}
	type result struct {
		line string
		err  error
	}
	done := make(chan result, 1) // the reader never blocks on it
	go func() {
		line, err := readLine(t.In)
		done <- result{line, err}
	}()
	select {
	case r := <-done:
		return r.line, r.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// readLine returns the line without its newline. Of a long line the rest is
// read and dropped, and what is returned is not "yes".
func readLine(in io.Reader) (string, error) {
	var line []byte
	var b [1]byte
	for {
		n, err := in.Read(b[:])
		if n == 1 {
			if b[0] == '\n' {
				return string(line), nil
			}
			if len(line) < maxAnswer {
				line = append(line, b[0])
			}
		}
		if err != nil {
			return string(line), err
		}
	}
}

// MaxCard is the longest card, in bytes. A call that needs a longer one is not put
// to a person: see Resolve.
const MaxCard = 256 << 10

// Card is the request as plain ASCII text: what will run, with which digest,
// where, what it can reach, and which policies ask. It names everything that
// policy and person decide on, however much that is. Content is there by digest:
// of files, and of a sealed standard input behind its first MaxStdinHead bytes.
func Card(r Request) string {
	var b strings.Builder
	row := func(name, format string, a ...any) {
		fmt.Fprintf(&b, "  %-11s "+format+"\n", append([]any{name}, a...)...)
	}
	list := func(name string, items []string) { // a long one has a line for each item
		if line := shownAll(items); len(line) <= maxLine {
			row(name, "%s", line)
			return
		}
		for _, s := range items {
			row(name, "%s", shown(s))
			name = ""
		}
	}
	c := &r.Call
	b.WriteString("\nApproval needed\n")
	row("capsule", "%s", r.Capsule)
	row("asked by", "%s for %s", Escape(r.Principal), Escape(r.Tool))
	list("runs", c.Argv)
	row("program", "%s %s", shown(c.Executable), c.Digest)
	if c.Script != "" {
		row("script", "%s %s", shown(c.Script), c.ScriptDigest)
	}
	for _, o := range c.Operands {
		row("file", "%s %s", shown(o.Path), o.Digest)
	}
	row("in", "%s", shown(c.Cwd))
	row("workspace", "%s", workspace(c))
	for _, p := range c.Planted {
		row("DANGER", "%s: %s (%s)", shown(p.Path), Escape(p.Why), Escape(p.Kind))
	}
	row("network", "%s", network(c))
	for _, l := range c.Loose {
		row("NOT HELD", "%s may be another thing when it runs", shown(l))
	}
	for _, l := range c.Libraries {
		row("NOT HELD", "libraries from %s", shown(l))
	}
	if len(c.Absent) > 0 {
		list("NOT THERE", c.Absent)
		row("", "a file made under such a name would be read")
	}
	if len(c.Capabilities) > 0 {
		row("can", "%s", Escape(strings.Join(c.Capabilities, ", ")))
	}
	if len(c.EnvNames) > 0 {
		list("environment", c.EnvNames)
	}
	if len(c.EnvChanged) > 0 {
		list("set to", c.EnvChanged)
	}
	row("stdin", "%s", Escape(orNone(c.Stdin)))
	if !c.StdinDigest.IsZero() {
		row("", "%d bytes, %s", c.StdinSize, c.StdinDigest)
	}
	if c.StdinHead != "" {
		more := ""
		if n := c.StdinSize - int64(len(c.StdinHead)); n > 0 {
			more = fmt.Sprintf(" [and %d more bytes NOT SHOWN]", n)
		}
		row("", "%s%s", shown(c.StdinHead), more)
	}
	row("tier", "%s", Escape(orNone(c.Tier)))
	if c.Limits != "" {
		row("limits", "%s", Escape(c.Limits))
	}
	for _, w := range r.Why {
		reason := w.Reason
		if reason == "" {
			reason = "the policy gives no reason"
		}
		row("because", "%s (policy %s, %s)", Escape(reason), Escape(w.Policy), Escape(w.Where))
	}
	row("policy set", "%s", r.PolicySet)
	return b.String()
}

// maxLine is how long a row may be that holds more than one item, in bytes.
const maxLine = 160

func workspace(c *Call) string {
	switch {
	case c.Workspace == "":
		return "none of this host (an empty private one)"
	case c.ReadOnly:
		return shown(c.Workspace) + ", read-only"
	}
	return shown(c.Workspace) + ", WRITABLE"
}

func network(c *Call) string {
	if len(c.EgressHosts) == 0 {
		return "none"
	}
	return shownAll(c.EgressHosts)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
