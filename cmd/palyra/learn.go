package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/authz/policy"
	"palyra/call/egress"
	"palyra/call/egress/reach"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/terminal"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
	"palyra/kernel"
	"palyra/kernel/account"
)

// lesson is a host that programs asked for and didn't get.
type lesson struct {
	Rule     string   `json:"rule"`     // that would allow it
	Times    int64    `json:"times"`    // how often it was asked for
	Calls    int      `json:"calls"`    // how many calls asked for it
	Programs []string `json:"programs"` // first words of these calls' commands, four at most
	Entry    uint64   `json:"entry"`    // in the journal, of the newest
	// Why is "not_listed", or "forbidden" for an address, or a name in a network, that is no one's to
	// propose.
	Why string `json:"why"`
	// Guessed says that the program asked for the name alone: the port is 443 for want of another.
	Guessed bool `json:"guessed,omitempty"`
}

// lessonsOf finds what the newest last calls in a journal were denied, each host once, the newest
// first. Session and run, if they aren't empty, are those that the calls must be of.
func lessonsOf(ctx context.Context, read kernel.Entries, size uint64, last int, session, run string) (lessons []*lesson, calls int, err error) {
	byRule := make(map[string]*lesson)
	for d, err := range kernel.Decisions(read, size, size) {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, 0, err
		}
		p := &d.Statement.Predicate
		if session != "" && p.SessionID != session || run != "" && p.RunID != run {
			continue
		}
		if calls == last {
			break
		}
		calls++
		seen := evidence.Decode(p.Evidence)
		if seen == nil {
			continue
		}
		asked := make(map[string]bool)
		for _, x := range seen.Egress.Denied {
			rule, why, ok := ruleFor(x)
			if !ok {
				continue
			}
			l := byRule[rule]
			if l == nil {
				l = &lesson{Rule: rule, Entry: d.Index, Why: why, Guessed: x.Port == 0, Programs: []string{}}
				byRule[rule], lessons = l, append(lessons, l)
			}
			l.Times += x.Times
			l.Guessed = l.Guessed && x.Port == 0
			if asked[rule] {
				continue
			}
			asked[rule] = true
			l.Calls++
			if name := firstWord(p.Capsule.Argv[0]); len(l.Programs) < 4 && !slices.Contains(l.Programs, name) {
				l.Programs = append(l.Programs, name)
			}
		}
	}
	return lessons, calls, nil
}

// firstWord returns the first word of a command as a person is shown it: as it was said, since a
// program of a workspace can have any program's name behind its folder.
func firstWord(argv0 string) string {
	const most = 64 // bytes
	if len(argv0) > most {
		return strings.ToValidUTF8(argv0[:most], "") + "…"
	}
	return argv0
}

// ruleFor returns the rule that would have allowed what was denied, if a rule could, and why it was
// denied: an address that no rule has was looked at no further.
func ruleFor(x evidence.Denial) (rule, why string, ok bool) {
	if x.Why != evidence.DenyNotListed && x.Why != evidence.DenyForbidden {
		return "", "", false
	}
	host := x.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if x.Port != 0 {
		host = fmt.Sprintf("%s:%d", host, x.Port)
	}
	r, err := egress.ParseRule(host)
	if p := r.Prefix(); err == nil && p.IsValid() && reach.Check(p.Addr()) != nil {
		return r.String(), evidence.DenyForbidden, true
	}
	return r.String(), x.Why, err == nil
}

// policyLearn proposes the hosts that calls were denied for a list of a policy directory, and adds
// them to it if a person says so.
func (a *app) policyLearn(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	name, dir := inv.Operands[0], command.Value(inv, "policy", "")
	op := fmt.Sprintf("learn hosts of %.40q", name)
	switch {
	case !egress.ListName(name):
		return nil, fault.New(fault.Usage, "bad_command", op, errors.New("a list's name has lower-case letters, digits and inner hyphens, 32 at most"))
	case dir == "":
		return nil, fault.New(fault.Usage, "bad_command", op, errors.New("the built-in set can't be changed: want --policy DIR")).
			WithHint("palyra policy init DIR makes a directory")
	}
	set, err := policy.Load(dir)
	if err != nil {
		return nil, err
	}
	r, err := a.recall(inv)
	if err != nil {
		return nil, err
	}
	lessons, calls, err := lessonsOf(ctx, r.Entries, r.Size(), command.Value(inv, "last", 1000), command.Value(inv, "session", ""), command.Value(inv, "run", ""))
	r.Close()
	if err != nil {
		return nil, err
	}
	add, private := []*lesson{}, []*lesson{}
	for _, l := range lessons {
		rule, err := egress.ParseRule(l.Rule)
		switch {
		case err != nil || slices.ContainsFunc(set.Hosts(), func(x egress.List) bool {
			return slices.ContainsFunc(x.Rules, func(have egress.Rule) bool { return have.Covers(rule) })
		}):
		case l.Why == evidence.DenyForbidden:
			private = append(private, l)
		default:
			add = append(add, l)
		}
	}
	path := filepath.Join(dir, name+".hosts")
	fields := front.Document{"list": name, "file": path, "calls": calls, "proposed": add, "private": private, "added": false, "policy_set": set.Digest()}
	text := lessonsText(name, calls, add, private)
	if len(add) == 0 || inv.Has("print") || inv.Has("json") {
		return &front.Report{Text: text, Fields: fields}, nil
	}
	if err := a.permitHosts(ctx, op, text); err != nil {
		return nil, err
	}
	if set, err = addHosts(op, dir, path, add); err != nil {
		return nil, err
	}
	fields["added"], fields["policy_set"] = true, set.Digest()
	return &front.Report{Text: fmt.Sprintf("added %d rules to %s: policy set %s\npalyrad decides by them after palyra policy reload\n", len(add), front.Escape(path), set.Digest()), Fields: fields}, nil
}

// lessonsText shows what is proposed. Names are what programs asked for: foreign.
func lessonsText(name string, calls int, add, private []*lesson) string {
	var b strings.Builder
	if len(add) == 0 {
		fmt.Fprintf(&b, "nothing to add: of %d calls none was denied a host that is in no list\n", calls)
	} else {
		fmt.Fprintf(&b, "hosts that calls were denied, for the list %s (--egress @%s):\n", name, name)
	}
	for _, l := range add {
		guess := ""
		if l.Guessed {
			guess = ", which named no port"
		}
		fmt.Fprintf(&b, "  + %s\n      asked for %s by %s of %s%s; the newest is entry %d\n",
			front.Escape(l.Rule), counted(l.Times, "time"), counted(int64(l.Calls), "call"), account.Quoted(l.Programs), guess, l.Entry)
	}
	if len(private) > 0 {
		b.WriteString("not proposed, because they are a private or special address, or lead to one:\n")
	}
	for _, l := range private {
		fmt.Fprintf(&b, "    %s\n", front.Escape(l.Rule))
	}
	return b.String()
}

func counted(n int64, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// permitHosts asks the person at the terminal.
func (a *app) permitHosts(ctx context.Context, op, shown string) error {
	if a.getenv("PALYRA_NO_INPUT") != "" {
		return fault.New(fault.NotApproved, "not_approved", op, errors.New("PALYRA_NO_INPUT forbids asking")).WithHint("--print shows the rules alone")
	}
	dev, err := terminal.Open(ctx, a.terminal)
	if err != nil {
		return fault.New(fault.NotApproved, "not_approved", op, err).WithHint("--print shows the rules alone; a person adds them to the file")
	}
	defer dev.Close()
	yes, _, err := dev.Person(localName()).Confirm(ctx, shown, "add them; anything else denies: ")
	switch {
	case ctx.Err() != nil:
		return fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	case fault.ReasonOf(err) != "":
		return err
	case err != nil:
		return fault.New(fault.Unavailable, "io_error", op, err)
	case !yes:
		return fault.New(fault.NotApproved, "not_approved", op, errors.New("nothing was added"))
	}
	return nil
}

// addHosts writes the rules behind those that the list has, and returns the set with them. If the
// directory doesn't load any more, because a policy test of its own says otherwise, the list is as
// it was.
func addHosts(op, dir, path string, add []*lesson) (*policy.Set, error) {
	old, err := durable.ReadRegular(path, 1<<20)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return nil, fault.New(fault.BadState, "bad_file", op, err)
	}
	text := string(old)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	for _, l := range add {
		text += l.Rule + "\n"
	}
	write := func(data []byte) error {
		if err := durable.WriteFile(path, data, 0o644); err != nil {
			return fault.New(fault.Unavailable, "io_error", op, err)
		}
		return nil
	}
	if err := write([]byte(text)); err != nil {
		return nil, err
	}
	set, err := policy.Load(dir)
	if err == nil {
		return set, nil
	}
	if fresh {
		return nil, errors.Join(err, os.Remove(path))
	}
	return nil, errors.Join(err, write(old))
}
