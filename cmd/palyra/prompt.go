package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	"palyra/authz/approval"
)

// ttyApprover asks the person at the controlling terminal. It opens the
// terminal by name and never reads standard input, which may come from whoever
// asks for the call. There is no flag that answers instead of the person.
//
// To approve, the person types the first digits of the capsule's digest. That
// is longer than "y" on purpose: it cannot be typed ahead, pasted from before
// or hit by habit, because it is different for every call.
type ttyApprover struct {
	path string        // "/dev/tty"
	name func() string // for the record; most calls ask nobody
}

var _ approval.Approver = (*ttyApprover)(nil)

// codeLength is how many digits of the digest approve. Sixteen bits are no
// secret from anyone; they are only not a habit.
const codeLength = 4

// maxAnswer is the longest line that is looked at.
const maxAnswer = 64

// approver returns who is asked, or nil if PALYRA_NO_INPUT says nobody.
func (a *app) approver() approval.Approver {
	if a.getenv("PALYRA_NO_INPUT") != "" {
		return nil
	}
	return &ttyApprover{path: a.terminal, name: localName}
}

// localName names the person for the record: what the system knows of our user
// id, not what an environment variable claims.
func localName() string {
	if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid:%d", os.Getuid())
}

// Ask shows the card and reads one line.
func (t *ttyApprover) Ask(ctx context.Context, r approval.Request) (approval.Answer, error) {
	ans := approval.Answer{Approver: t.name(), Surface: "terminal"}
	tty, err := os.OpenFile(t.path, os.O_RDWR, 0)
	if err != nil {
		return ans, errors.New("no controlling terminal to ask on")
	}
	defer tty.Close()
	stop := context.AfterFunc(ctx, func() { tty.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	ans.Approved, err = ask(tty, r)
	if ctx.Err() != nil {
		fmt.Fprint(tty, "\nno answer: denied\n")
		ans.Approved = false
		return ans, ctx.Err()
	}
	return ans, err
}

// ask puts r to whoever is at the other end of tty.
func ask(tty io.ReadWriter, r approval.Request) (bool, error) {
	if r.Capsule.IsZero() {
		return false, errors.New("no capsule to approve")
	}
	code := r.Capsule.Hex()[:codeLength]
	if _, err := fmt.Fprintf(tty, "%s\nType %s to approve this call once; anything else denies: ", approval.Card(r), code); err != nil {
		return false, fmt.Errorf("write to terminal: %w", err)
	}
	line, err := readLine(tty)
	if err != nil && err != io.EOF {
		return false, fmt.Errorf("read from terminal: %w", err)
	}
	// A line that the end of input cut short was not finished by a person.
	yes := err == nil && strings.TrimSpace(line) == code
	if yes {
		fmt.Fprint(tty, "approved\n\n")
	} else {
		fmt.Fprint(tty, "denied\n\n")
	}
	return yes, nil
}

// readLine reads byte by byte to the next newline and not beyond, so that what
// follows is left for the next question. Of a long line the rest is dropped.
func readLine(r io.Reader) (string, error) {
	var line []byte
	var b [1]byte
	for {
		n, err := r.Read(b[:])
		if n == 1 && b[0] == '\n' {
			return string(line), nil
		}
		if n == 1 && len(line) < maxAnswer {
			line = append(line, b[0])
		}
		if err != nil {
			return string(line), err
		}
	}
}
