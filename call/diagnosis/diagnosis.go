// Package diagnosis says in one sentence why a program that ran in a cell may have failed,
// and which setting changes that.
//
//	d := diagnosis.Of(diagnosis.Seen{Outcome: "executed", Observed: true, Signal: 25, Limits: l})
//	d.ForExec() // "the program wrote a file up to the file size limit of 1 MiB; --max-file changes it"
//
// It's one table (Rows). A row is observed if the evidence alone says so: a limit that was
// hit, a signal, dropped output. Otherwise it's a guess from the exit status or from the last
// KiB of standard error, and its sentence says that it is one. Observed rows never see the
// error text, so no program can make one apply by printing something.
//
// What it does not protect against: a program chooses its error text and status, so it
// chooses among the guesses. Its text appears in no sentence, but for a host that it asked for or
// that its arguments have, which is a canonical name or address. A diagnosis is no part of the
// receipt, and changes neither outcome nor exit status.
package diagnosis

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"palyra/call"
	"palyra/call/egress"
)

// The bases of a diagnosis.
const (
	Observed = "observed"
	Guess    = "guess"
)

// TailSize is how much of the end of standard error counts, in bytes.
const TailSize = 1 << 10

// Diagnosis is what Palyra says about a failed call.
type Diagnosis struct {
	Code  string `json:"code"`
	Basis string `json:"basis"` // "observed" or "guess"
	// Text is a sentence of Palyra's own, without a period.
	Text string `json:"text"`
	// Flag, Input and Config name the setting that changes it: a flag of palyra exec (with the value
	// that would, for a host), a member
	// of the input of process.run, a key of palyrad.toml. Each is absent where there is none.
	Flag   string `json:"flag,omitempty"`
	Input  string `json:"input,omitempty"`
	Config string `json:"config,omitempty"`
}

// ForExec returns the line for a caller of palyra exec.
func (d *Diagnosis) ForExec() string {
	if d.Flag == "" {
		return d.Text
	}
	return d.Text + "; " + d.Flag + " changes it"
}

// ForCall returns the line for a caller of palyrad.
func (d *Diagnosis) ForCall() string {
	switch {
	case d.Input != "" && d.Config != "":
		return d.Text + "; " + d.Input + " in the tool's input changes it, within " + d.Config + " of palyrad.toml"
	case d.Input != "":
		return d.Text + "; " + d.Input + " in the tool's input changes it"
	}
	return d.Text
}

// Seen is what is known of a call that ran.
type Seen struct {
	Outcome  string // one of receipt's; only executed, killed and timed_out ones are diagnosed
	Observed bool   // the end of the program was read from the kernel
	Code     int    // exit status; -1: none
	Signal   int    // that ended it, 0: none
	LimitHit string // of the evidence, such as "wall"; "": none is known
	Cut      int64  // bytes of output that were dropped
	// Denied are names and addresses that the program asked for and didn't get.
	Denied []Denied
	Limits call.Limits
	Caches []string // that the call used
	Argv   []string // of the call
	Hosts  []string // that the call names, as rules
	// Networks says that names of Hosts may lead into networks among them alone.
	Networks bool

	// BuiltIn says that the program is a built-in tool's: it explains its own errors and its
	// limits are fixed, so there is neither a guess nor a setting.
	BuiltIn bool
	// InPlace says that the host's paths are the program's (tier B).
	InPlace   bool
	Workspace string // on the host; "": a private one
	TTY       bool   // it had a terminal of its own

	// Stderr is the end of standard error. It's foreign.
	Stderr []byte
}

// Denied is one of them, as the evidence has it.
type Denied struct {
	Host string // as the program asked for it: foreign
	Port uint32 // 0: it only looked the name up
	Why  string // as in evidence.Denial
	// Limit is which limit it was, if that is why; foreign, too.
	Limit string
}

// failed reports whether there's anything to explain.
func (s *Seen) failed() bool {
	switch s.Outcome {
	case "executed":
		return s.Code != 0 || s.Signal != 0
	case "killed", "timed_out":
		return true
	}
	return false
}

// Of returns the first row of the table that applies, nil if none does.
func Of(s Seen) *Diagnosis {
	if !s.failed() {
		return nil
	}
	lines := tail(s.Stderr)
	for i := range rows {
		if r := &rows[i]; r.applies(&s, lines) {
			return r.say(&s)
		}
	}
	return nil
}

// facts are the part of Seen that observed rows may judge by.
type facts struct {
	limitHit string
	signal   int
	cut      int64
	refused  []Denied
	caches   bool // the call had some
	networks bool // as in Seen
}

// firstFor returns the first denial for a reason whose host [refusedFor] can name, nil if there is
// none.
func firstFor(why string, all []Denied) *Denied {
	for i := range all {
		if refusedFor(why, all[i:i+1]) != "" {
			return &all[i]
		}
	}
	return nil
}

// exceeded is what a denial for a limit was beyond, "" for a limit that isn't known.
func exceeded(limit string) string {
	if b, err := egress.ParseBound(limit); err == nil {
		return b.String()
	}
	return egressLimits[limit]
}

// egressLimits says of each limit of a call's egress what it bounds.
var egressLimits = map[string]string{"open": "the connections that a call may have at once", "connections": "the connections that a call may make",
	"rate": "the connections that a call may make in a second", "sent": "the bytes that a call may send", "received": "the bytes that a call may get", "names": "the names that a call may look up",
	"queries": "the DNS queries that a call may send", "query_rate": "the DNS queries that a call may send in a second"}

// refusedFor returns the rule that would name the first host that was denied for a reason. It's
// canonical, so it's no text that the program could choose freely. "" if no such host can be named.
func refusedFor(why string, all []Denied) string {
	for _, d := range all {
		text := d.Host
		if strings.Contains(text, ":") && !strings.HasPrefix(text, "[") {
			text = "[" + text + "]" // an IPv6 address
		}
		if _, _, err := egress.Host(text); err != nil || d.Why != why {
			continue
		}
		if d.Port != 0 {
			text += ":" + strconv.Itoa(int(d.Port))
		}
		if r, err := egress.ParseRule(text); err == nil && (why != limited || exceeded(d.Limit) != "") {
			return r.String()
		}
	}
	return ""
}

func (r *Row) applies(s *Seen, lines []string) bool {
	if r.observed != nil {
		return s.Observed && r.observed(&facts{s.LimitHit, s.Signal, s.Cut, s.Denied, len(s.Caches) > 0, s.Networks})
	}
	if s.BuiltIn || s.Outcome != "executed" {
		return false
	}
	if r.status != 0 && s.Code == r.status {
		return true
	}
	for _, l := range lines {
		if r.text != nil && r.text(s, l) {
			return true
		}
	}
	return false
}

func (r *Row) say(s *Seen) *Diagnosis {
	d := &Diagnosis{Code: r.Code, Basis: r.Basis(), Text: r.Text}
	limit := ""
	if r.limit != nil {
		limit = r.limit(&s.Limits)
	}
	host := refusedFor(r.denied, s.Denied)
	if r.denied == noName || r.denied == noAnswer { // a name was looked up, for whatever port
		host = host[:max(strings.LastIndexByte(host, ':'), 0)]
	}
	over := ""
	if x := firstFor(limited, s.Denied); x != nil {
		over = exceeded(x.Limit)
	}
	d.Text = strings.NewReplacer("{denied}", host, "{exceeded}", over, "{ssh}", sshHost(s, tail(s.Stderr)), "{refused}", host[:max(strings.LastIndexByte(host, ':'), 0)], "{limit}", limit, "{cut}", fmt.Sprint(s.Cut), "{signal}", signals[s.Signal], "{caches}", strings.Join(s.Caches, ", ")).Replace(d.Text)
	switch {
	case d.Basis == Observed:
	case r.status != 0:
		d.Text += guessFromStatus
	default:
		d.Text += guessFromText
	}
	if !s.BuiltIn {
		d.Flag, d.Input, d.Config = r.Flag, r.Input, r.Config
		if r.denied == notListed {
			d.Flag += " " + host
		}
	}
	return d
}

// The marks of guesses.
const (
	guessFromText   = " (a guess from the program's error text)"
	guessFromStatus = " (a guess from the program's exit status)"
)

// tail returns the lines of the last TailSize bytes of b, in lower case.
func tail(b []byte) []string {
	b = b[max(0, len(b)-TailSize):]
	return strings.FieldsFunc(string(bytes.ToLower(b)), func(r rune) bool { return r == '\n' || r == '\r' })
}

// seconds returns a processor limit as the kernel applies it: whole seconds, rounded up.
func seconds(d time.Duration) string {
	return ((d + time.Second - 1) / time.Second * time.Second).String()
}
