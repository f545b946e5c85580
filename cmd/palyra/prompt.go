package main

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"strconv"

	"palyra/authz/approval"
	"palyra/cmd/internal/terminal"
)

// ttyApprover asks the person at the controlling terminal. It opens the terminal by name
// and never reads standard input, which may come from the requester of the call. There is
// no flag that answers instead of the person.
type ttyApprover struct {
	path string        // "/dev/tty"
	name func() string // for the record; most calls don't ask

	before string // stands before the card; for Terminal.Show
}

var _ approval.Approver = (*ttyApprover)(nil)

// approver returns the approver to ask, or nil if PALYRA_NO_INPUT forbids asking.
func (a *app) approver() approval.Approver {
	if a.getenv("PALYRA_NO_INPUT") != "" {
		return nil
	}
	return &ttyApprover{path: a.terminal, name: localName}
}

// localName names the person for the record: by the system's entry for our user id, not by
// an environment variable.
func localName() string {
	if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid:%d", os.Getuid())
}

// Ask shows the card and reads one line. No other process of ours writes to the terminal
// meanwhile.
func (t *ttyApprover) Ask(ctx context.Context, r approval.Request) (approval.Answer, error) {
	name := t.name()
	dev, err := terminal.Open(ctx, t.path)
	if err != nil {
		return approval.Answer{Approver: name, Surface: "terminal"}, err
	}
	defer dev.Close()
	person := dev.Person(name)
	if err := person.Show(t.before); err != nil {
		return approval.Answer{Approver: name, Surface: "terminal"}, err
	}
	return person.Ask(ctx, r)
}
