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
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/terminal"
	"palyra/crypt/receipt"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
	"palyra/kernel"
	"palyra/kernel/account"
)

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
	session, run := command.Value(inv, "session", ""), command.Value(inv, "run", "")
	lessons, calls, err := kernel.Lessons(ctx, r.Entries, r.Size(), command.Value(inv, "last", 1000), func(p *receipt.Predicate) bool {
		return (session == "" || p.SessionID == session) && (run == "" || p.RunID == run)
	})
	r.Close()
	if err != nil {
		return nil, err
	}
	add, private := []*kernel.Lesson{}, []*kernel.Lesson{}
	for _, l := range lessons {
		rule, err := egress.ParseRule(l.Rule)
		switch {
		case err != nil || slices.ContainsFunc(set.Hosts(), func(x egress.List) bool {
			return slices.ContainsFunc(x.Rules, func(have egress.Rule) bool { return have.Bare().Covers(rule) })
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
func lessonsText(name string, calls int, add, private []*kernel.Lesson) string {
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
func addHosts(op, dir, path string, add []*kernel.Lesson) (*policy.Set, error) {
	old, err := durable.ReadRegular(path, 1<<20)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return nil, fault.New(fault.BadState, "bad_file", op, err)
	}
	text := egress.NextVersion(string(old))
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
