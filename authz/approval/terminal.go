package approval

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"palyra/call"
	"palyra/call/egress"
	"palyra/internal/fault"
)

// Terminal asks on a terminal. A person approves by typing the digits that the
// last line shows: they are drawn when the card has been shown and are nowhere
// else, so neither the requester nor another program can know them before.
// Anything else, an empty line or the end of input denies.
//
// A text that is longer than the screen is shown page by page, and the digits
// come behind the last page: an answer is to something that was on the screen, with
// its question. A screen of less than MinRows or MinColumns has no room for that, and is
// refused, before a page or after the digits: fault.BadState "no_approver".
//
// It reads byte by byte and not past the line, so what follows on In is left for others. If
// In has a read deadline (a pollable file), the end of ctx interrupts the read. If it has
// none, Ask returns, and the read ends with the next line, which it throws away.
//
// The caller keeps other programs of its own from writing to a real terminal
// meanwhile, and must not give the program's own stdin as In.
type Terminal struct {
	In   io.Reader
	Out  io.Writer
	Name string // who sits there, for the record

	Size    func() (rows, columns int) // of the screen now, asked for each page; nil: it has no bounds
	Discard func()                     // throws away what was typed ahead; nil: nothing can be
}

var _ Approver = (*Terminal)(nil)

// maxAnswer is the longest line that Ask reads, in bytes.
const maxAnswer = 512

// Ask shows r and reads one line. A line that is not the digits is a no, and its
// comment.
func (t *Terminal) Ask(ctx context.Context, r Request) (Answer, error) {
	ans := Answer{Approver: t.Name, Surface: "terminal"}
	if r.Capsule.IsZero() {
		return ans, errors.New("no capsule to approve")
	}
	yes, typed, err := t.Confirm(ctx, Card(r), "approve this call once; anything else is told to the caller, and denies: ")
	switch {
	case ctx.Err() != nil:
		return ans, ctx.Err()
	case err != nil:
		return ans, err
	}
	if ans.Approved = yes; !yes {
		ans.Comment = Comment(typed)
	}
	t.say(map[bool]string{true: "approved\n\n", false: "denied\n\n"}[yes])
	return ans, nil
}

// Comment returns the comment in a line that isn't the digits.
func Comment(line string) string {
	line = strings.TrimSpace(line)
	if strings.Trim(line, "0123456789") == "" { // digits of a slip
		return ""
	}
	first, rest, _ := strings.Cut(line, " ")
	switch strings.ToLower(strings.TrimRight(first, ":,.;")) {
	case "n", "no", "y", "yes":
		return strings.TrimSpace(rest)
	}
	return line
}

// Confirm shows text, which is printable, and asks for digits: "Type 4711 to
// WHAT". It reports whether they were typed, and else what was.
func (t *Terminal) Confirm(ctx context.Context, text, what string) (yes bool, typed string, err error) {
	if t.In == nil || t.Out == nil {
		return false, "", errors.New("no terminal")
	}
	for n := 1; ; n++ {
		pages, err := t.pages(text, what)
		if err != nil {
			return false, "", err
		}
		if err := t.say(pages[0]); err != nil {
			return false, "", err
		}
		if len(pages) == 1 {
			break
		}
		line, ok, err := t.line(ctx, fmt.Sprintf(morePrompt, n, n-1+len(pages)))
		if line != "" || !ok || err != nil {
			return false, "", err // the typed text goes no further
		}
		text = strings.Join(pages[1:], "") // cut again, for the screen as it is by then
	}
	code := newCode()
	line, ok, err := t.line(ctx, fmt.Sprintf(codePrompt, code, what))
	if !ok || err != nil || line != code {
		return false, line, err
	}
	if _, err := t.pages("", what); err != nil { // it shrank meanwhile
		return false, "", err
	}
	return true, line, nil
}

// Line shows text, which is printable, and returns the line that a person types behind prompt, ""
// if they finished none.
func (t *Terminal) Line(ctx context.Context, text, prompt string) (string, error) {
	if err := t.Show(text); err != nil {
		return "", err
	}
	line, ok, err := t.line(ctx, prompt)
	if !ok || err != nil {
		return "", err
	}
	return line, nil
}

// Show shows text, which is printable and has no tabs. A line that is too long for the screen is
// cut as those of cards are, so what it goes on with can't look like a line of ours.
func (t *Terminal) Show(text string) error {
	if t.Size != nil {
		_, columns := t.Size()
		text = strings.Join(Rows(text, columns), "")
	}
	return t.say(text)
}

// The questions behind a page, and behind the last.
const (
	morePrompt = "-- page %d of %d: Enter shows the next, anything else denies -- "
	codePrompt = "\nType %s to %s"
)

// newCode draws four digits.
func newCode() string {
	var b [4]byte
	rand.Read(b[:])
	return fmt.Sprintf("%04d", binary.BigEndian.Uint32(b[:])%10000)
}

func (t *Terminal) say(s string) error {
	if _, err := io.WriteString(t.Out, s); err != nil {
		return fmt.Errorf("write to terminal: %w", err)
	}
	return nil
}

// line prompts for one line. ok is false if the input ended before the line did: then no
// person finished it.
func (t *Terminal) line(ctx context.Context, prompt string) (line string, ok bool, err error) {
	if t.Discard != nil {
		t.Discard()
	}
	if err := t.say(prompt); err != nil {
		return "", false, err
	}
	line, err = t.readLine(ctx)
	if ctx.Err() != nil {
		_ = t.say("\nno answer: denied\n") // the end of ctx is the error
		return "", false, ctx.Err()
	}
	if err != nil && err != io.EOF {
		return "", false, fmt.Errorf("read from terminal: %w", err)
	}
	return strings.TrimSpace(line), err == nil, nil
}

// The smallest screen on which a person can be asked: our longest question has five rows
// of MinColumns, and leaves three for what it is about.
const (
	MinRows    = 8
	MinColumns = 30
)

// Fits is fault.BadState "no_approver" for a screen of less than MinRows or MinColumns.
func Fits(rows, columns int) error {
	if rows >= MinRows && columns >= MinColumns {
		return nil
	}
	return fault.New(fault.BadState, "no_approver", "ask on terminal",
		fmt.Errorf("it has %d rows of %d columns, a question needs %d of %d", rows, columns, MinRows, MinColumns)).
		WithHint("enlarge it and try again, or answer elsewhere: palyra approvals approve")
}

// pages cuts a text for the screen, and leaves room for the question behind each page.
func (t *Terminal) pages(text, what string) ([]string, error) {
	if t.Size == nil {
		return []string{text}, nil
	}
	atOnce, columns := t.Size()
	if err := Fits(atOnce, columns); err != nil {
		return nil, err
	}
	rows := Rows(text, columns)
	asked := len(fmt.Sprintf(codePrompt, "0000", what)) + len("0000") // and the cursor, for the line end
	prompt := max(1+(asked+columns-1)/columns, (len(morePrompt)+8+columns)/columns)
	height := max(atOnce-prompt, 1)
	var out []string
	for page := range slices.Chunk(rows, height) {
		out = append(out, strings.Join(page, ""))
	}
	if len(out) == 0 {
		out = []string{""}
	}
	return out, nil
}

// Rows cuts a text into rows, with their line ends, for a screen of so many columns. A line
// that is too long goes on behind a mark that no row of a card begins with, so no line can
// be made to look like another.
func Rows(text string, columns int) (rows []string) {
	const mark = "    > "
	width := max(columns-1, len(mark)+1)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		for cut, indent := width, ""; ; cut, indent = width-len(mark), mark {
			if len(line) <= cut {
				rows = append(rows, indent+line+"\n")
				break
			}
			rows = append(rows, indent+line[:cut]+"\n")
			line = line[cut:]
		}
	}
	return rows
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

// readLine returns the line without its newline. It reads and drops the rest of a long
// line.
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

// MaxCard is the longest card, in bytes. Resolve puts no call to a person that needs a
// longer one.
const MaxCard = 256 << 10

// Card returns the request as plain ASCII text: the program and its digest, the place, its
// reach, and the policies that ask. It names everything that policy and person decide on,
// however much that is. Digests stand for content: of files, and of a sealed standard input
// behind its first MaxStdinHead bytes.
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
	row("asked by", "%s for %s", bare(c.Principal), Escape(c.Tool))
	list("runs", c.Argv)
	row("program", "%s %s", shown(c.Executable), c.Digest)
	if c.Script != "" {
		row("script", "%s %s", shown(c.Script), c.ScriptDigest)
	}
	for _, o := range c.Readers {
		row("read by", "%s %s", shown(o.Path), o.Digest)
	}
	if c.renamed() {
		list("called", c.Called)
	}
	for _, o := range c.Operands {
		row("file", "%s %s", shown(o.Path), o.Digest)
	}
	if m := c.MCP; m != nil {
		row("server", "%s, which runs already, in a cell of its own", shown(m.Server))
		row("its tool", "%s", shown(m.Tool))
		for _, a := range m.Arguments {
			row("argument", "%s", shown(a))
		}
	}
	row("in", "%s", shown(c.Cwd))
	row("workspace", "%s", workspace(c))
	if d := c.Declared; d != nil {
		row("declared", "%s", declared(d, slices.Contains(c.Caches, "tmp")))
	}
	for _, name := range c.Caches {
		if name == "tmp" {
			row("/tmp", "of the session, WRITABLE: earlier calls in this workspace filled it, later ones and RUNNING ONES read it")
			continue
		}
		row("cache", "%s, WRITABLE: earlier calls in this workspace filled it, later ones read it", shown(name))
	}
	for _, m := range c.Mounts {
		row("mount", "%s, read-only; what is in it is NOT HELD", shown(m))
	}
	for _, s := range c.Secrets {
		row("secret", "%s version %d, which the program CAN READ in /run/secrets/%s; record %s", shown(s.Ref), s.Version, Escape(s.Name), s.Record)
	}
	for _, p := range c.Planted {
		row("DANGER", "%s: %s (%s)", shown(p.Path), Escape(p.Why), Escape(p.Kind))
	}
	row("network", "%s", network(c))
	for _, h := range c.EgressHosts {
		row("reaches", "%s", host(h))
	}
	for _, r := range c.EgressInspect {
		row("requests", "%s; palyra-egress reads them, and refuses the host's others", shown(r))
	}
	for _, s := range c.EgressSecrets {
		row("uses", "%s", use(s))
	}
	if c.Background {
		row("background", "it goes on while its caller makes other calls, for as long as its limits and its session let it")
	}
	for _, l := range c.Loose {
		row("NOT HELD", "%s may be another thing when it runs", shown(l))
	}
	for _, l := range c.Folders {
		row("NOT HELD", "what is in %s when it runs", shown(l))
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
	for _, v := range c.EnvChanged {
		row("set to", "%s", shown(v))
	}
	if in := c.Inputs.Outside(); len(in) > 0 {
		row("has read", "FROM OUTSIDE before: %s", entries(in))
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
	if t := c.TTY; t != nil {
		row("terminal", "of its own, %d rows of %d columns, %s; stdin is typed there", t.Rows, t.Columns, Escape(t.Term))
	}
	row("tier", "%s", Escape(orNone(c.Tier)))
	if c.Limits != "" {
		row("limits", "%s", Escape(c.Limits))
	}
	for _, w := range c.Why {
		reason := w.Reason
		if reason == "" {
			reason = "the policy gives no reason"
		}
		row("because", "%s (policy %s, %s)", Escape(reason), Escape(w.Policy), Escape(w.Where))
	}
	row("policy set", "%s", r.PolicySet)
	return b.String()
}

// renamed reports whether the program is told more than its own name: another name, which
// programs with several purposes act on, or the arguments that scripts add.
func (c *Call) renamed() bool {
	switch {
	case len(c.Called) != 1:
		return len(c.Called) > 1
	case strings.Contains(c.Called[0], "/"):
		return c.Called[0] != c.Executable
	}
	return c.Called[0] != path.Base(c.Executable)
}

// entries says what came from outside and with which call first.
func entries(in call.Inputs) string {
	var all []string
	for _, e := range in {
		all = append(all, fmt.Sprintf("%s (%s, step %d)", Escape(e.Origin), Escape(e.Tool), e.Step))
	}
	return strings.Join(all, ", ")
}

// maxLine bounds a row that holds more than one item, in bytes.
const maxLine = 160

func workspace(c *Call) string {
	switch {
	case c.Workspace == "":
		return "none of this host (an empty private one)"
	case c.ReadOnly:
		return shown(c.Workspace) + ", read-only"
	case c.Staged && c.Layer != "":
		return shown(c.Workspace) + ", staged: the program reads what layer " + shown(c.Layer) + " ALREADY HOLDS in its stead, and writes there"
	case c.Staged:
		return shown(c.Workspace) + ", staged: what is written goes to a layer"
	}
	return shown(c.Workspace) + ", WRITABLE"
}

func network(c *Call) string {
	switch {
	case c.Network == "host":
		return "THE HOST'S, NOTHING ENFORCED: it reaches whatever this host reaches, and the host's own services at 127.0.0.1"
	case c.Network == "preflight":
		return "THE HOST'S, NAMES CHECKED BEFORE THE START ONLY: then it may reach any host, and the host's own services at 127.0.0.1. It names:"
	case len(c.EgressHosts) > 0:
		return "of this call alone; through palyra-egress it REACHES THESE HOSTS, and no other:"
	case c.Network == "loopback":
		return "loopback: its programs reach each other, and no host"
	case c.Network == "session":
		return "session: its programs and RUNNING CALLS OF ITS SESSION reach each other, and no host"
	}
	return "none"
}

// use says where a secret goes that the program can't read.
func use(s call.EgressSecret) string {
	u, err := egress.ParseUse(s.Use)
	if err != nil { // an older palyra's
		return shown(s.Use)
	}
	which := "all requests"
	if len(u.Methods) > 0 {
		which = strings.Join(u.Methods, ",")
	}
	text := fmt.Sprintf("%s version %d, which palyra-egress PUTS INTO %s to %s (%s), and the program CAN'T READ: it has a placeholder in %s; record %s",
		shown(u.Ref), s.Version, which, shown(u.Rule().String()+u.Path), shown(u.Place.String()), Escape(u.Name), s.Record)
	if u.Keep {
		text += "; the call's FILES MAY KEEP THE PLACEHOLDER"
	}
	if u.Revoke {
		text += "; if the placeholder leaks, this version expires"
	}
	return text
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// declared says what of a call is the operator's. A shared /tmp may be the caller's wish.
func declared(d *call.Declared, tmp bool) string {
	text := "mounts and caches"
	if tmp {
		text += " other than /tmp"
	}
	text += ", by the operator for the workspace " + Escape(d.Workspace)
	if !d.Env.IsZero() {
		text += ", with the variables " + d.Env.String()
	}
	return text
}
