// Command attack is the program that tries to get out. The battery
// (palyra/conformance/escape) runs it once outside, where each attempt must
// succeed, and once inside a sandbox, where none may.
//
//	attack PROBE [NAME=VALUE]... [-- COMMAND...]
//
// A probe makes one attempt and prints two lines of JSON: one with the outcome STARTED
// before it begins, so that a killed probe can be told from one that never ran, and one
// with the result:
//
//	{"case":"read","outcome":"EACCES","errno":13,"detail":"open: permission denied"}
//
// The outcome is OPEN if the attempt succeeded, else the name of the errno that stopped it,
// or ERROR for a mistake of the battery's own. The battery decides from the host whether a
// success mattered: it looks whether its secret came out, its listener was reached, its
// victim died.
//
// With terminal=1 it runs only with a terminal of its own.
//
// Some probes are not attempts but hands of the battery that need raw system
// calls: victim, plant, on-tty, without.
//
// It must be able to do harm in order to prove anything, and it does: it forks,
// fills memory and disk, and kills what it is pointed at. Run it only through
// the battery.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// result is the line that a probe prints.
type result struct {
	Case    string `json:"case"`
	Outcome string `json:"outcome"`
	Errno   int    `json:"errno"`
	Detail  string `json:"detail"`
}

// args are the NAME=VALUE words of the command line and what follows "--".
type args struct {
	word    map[string]string
	command []string
}

// probe makes one attempt. A nil error means that it succeeded; an error that
// holds an errno says what stopped it.
type probe func(a args) (detail string, err error)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: attack PROBE [NAME=VALUE]... [-- COMMAND...]")
		os.Exit(2)
	}
	if os.Args[1] == serveWord {
		if err := serve(); err != nil {
			fmt.Fprintf(os.Stderr, "attack: %v\n", err)
			os.Exit(1)
		}
		return
	}
	p, ok := probes()[os.Args[1]]
	if !ok {
		fmt.Fprintf(os.Stderr, "attack: unknown probe %q\n", os.Args[1])
		os.Exit(2)
	}
	a := parse(os.Args[2:])
	if dir := a.word["chdir"]; dir != "" {
		if err := os.Chdir(dir); err != nil {
			fmt.Fprintf(os.Stderr, "attack: %v\n", err)
			os.Exit(2)
		}
	}
	prepare()
	if a.word["terminal"] != "" {
		if err := onOwnTerminal(); err != nil {
			fmt.Fprintf(os.Stderr, "attack: %v\n", err)
			os.Exit(2)
		}
	}
	emit(result{Case: os.Args[1], Outcome: "STARTED"})
	detail, err := p(a)
	emit(report(os.Args[1], detail, err))
}

func parse(words []string) args {
	a := args{word: make(map[string]string)}
	for i, w := range words {
		if w == "--" {
			a.command = words[i+1:]
			break
		}
		name, value, _ := strings.Cut(w, "=")
		a.word[name] = value
	}
	return a
}

// str returns a word that must be there.
func (a args) str(name string) string {
	v, ok := a.word[name]
	if !ok {
		panic("attack: internal error: no " + name)
	}
	return v
}

// num returns a number that must be there.
func (a args) num(name string) int {
	n, err := strconv.Atoi(a.str(name))
	if err != nil {
		panic("attack: internal error: " + name + " is no number")
	}
	return n
}

func report(name, detail string, err error) result {
	r := result{Case: name, Outcome: "OPEN", Detail: detail}
	if err == nil {
		return r
	}
	r.Outcome, r.Detail = "ERROR", err.Error()
	if detail != "" {
		r.Detail += "; " + detail
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		r.Outcome, r.Errno = errnoName(errno), int(errno)
	}
	if s, ok := errors.AsType[said](err); ok {
		r.Outcome = string(s)
	}
	return r
}

// said is an answer that is no errno: a name server's, a proxy's, or that the other side hung up.
type said string

func (s said) Error() string { return string(s) }

// emit writes a line in one write, so that processes sharing the descriptor don't tear it.
// If standard output is gone, no reader is left.
func emit(r result) {
	b, err := json.Marshal(r)
	if err != nil {
		panic("attack: internal error: " + err.Error())
	}
	os.Stdout.Write(append(append([]byte("\n"), b...), '\n'))
}
