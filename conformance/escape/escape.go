// Command escape runs the attack battery: for each case of the attack table the same attempt once
// outside, as a positive control, and once inside a cell, as root and as an unprivileged user, at
// tier B, and at tier C in a cell that is built for the call (cold), in one that was waiting
// (warm), in one in the shared network namespace (void) and in one with a loopback interface that
// is up (loop); where that may make a difference also with a staged workspace (staged), in the
// network of a session, beside another cell of it (session), with a terminal of its own (tty), in a
// network where palyra-egress answers for a host (egress), in the host's network, where it's held
// to what holds there all the same (preflight), and as a tool of an MCP server behind palyrad
// (gateway).
//
//	make build
//	go run ./conformance/escape -out conformance/results/latest.json
//	go run ./conformance/escape -turn 1             # half of the attempts as root, half as the user
//	go run ./conformance/escape -case 7 -v          # one case, everything it saw
//	go run ./conformance/escape -sandbox bwrap -v   # a sandbox that should fail some
//	go run ./conformance/escape -attribute conformance/escape/recorded/attribution.json
//	go run ./conformance/escape -summarize conformance/results/latest.json
//
// The verdict comes from the host whenever the host can see: did the secret come out, was
// the listener reached, did the victim die, is there a set-user-id file. If it can't (a
// forbidden system call leaves no trace), the errno decides. See [judge] for the rules.
// Each verdict is one of
//
//	passed          the control succeeded, and the same attempt inside was
//	                stopped in a way that the case table names
//	open            it succeeded inside
//	hung            it, or palyra, did not end in time
//	failed          it was stopped in a way that the table does not name, or it
//	                did not run: no proof of anything
//	inconclusive    the control did not succeed, so the inside proves nothing
//	not_applicable  the tier cannot stop it by definition, or the mode makes no
//	                difference to it (expect.json says why); not run, not counted
//
// expect.json lists the inconclusive ones that are known, with the reason; one
// that is not on the list fails the run, as do open, hung and failed. The exit
// status is 0 if nothing failed, 1 if something did, 2 if the battery could not
// begin.
//
// It doesn't prove that no other attack works: it knows these.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

// config is the command line.
type config struct {
	out     string   // file for the records
	palyra  string   // the binary under test; palyra-cell is looked for beside it
	attack  string   // a built attack program; "" builds it
	warm    string   // a built launcher with a pool; "" builds it
	gate    string   // a built launcher over palyrad's gateway; "" builds it
	sandbox string   // "palyra" or, for comparison, "bwrap"
	cases   []string // "7", "7/chmod"; empty is all
	tiers   []string
	modes   []string // of tier C
	users   []string
	jobs    int
	uid     int // of the unprivileged user, where we are root
	turn    int // of the users; negative: both play all
	verbose bool
	keep    bool
}

func main() {
	if lending() {
		return
	}
	var c config
	var cases, tiers, users, modes string
	flag.StringVar(&c.out, "out", "", "write the records to `FILE` as JSON")
	flag.StringVar(&c.palyra, "palyra", "bin/palyra", "`FILE` under test")
	flag.StringVar(&c.attack, "attack", "", "a built attack program `FILE`, where there is no go command")
	flag.StringVar(&c.warm, "warm", "", "a built launcher with a pool `FILE`, where there is no go command")
	flag.StringVar(&c.gate, "gate", "", "a built launcher over palyrad's gateway `FILE`, where there is no go command")
	flag.StringVar(&c.sandbox, "sandbox", "palyra", "palyra, or bwrap as a comparison")
	flag.StringVar(&cases, "case", "", "only these, by number or number/variant, separated by commas")
	flag.StringVar(&tiers, "tier", "b,c", "only these tiers")
	flag.StringVar(&modes, "mode", "cold,warm,void,loop,staged,session,tty,egress,preflight,gateway", "only these kinds of tier C cells")
	flag.IntVar(&c.jobs, "j", 4, "attempts at once, of those that do not disturb each other")
	flag.StringVar(&users, "user", "root,unprivileged", "only these users; root is left out where we are not root")
	flag.IntVar(&c.uid, "uid", 64321, "user id of the unprivileged user, where we are root")
	flag.IntVar(&c.turn, "turn", -1, "make each attempt as one of two users, which the case, the mode and `N` choose: all of it in two turns")
	flag.BoolVar(&c.verbose, "v", false, "say what every run did")
	flag.BoolVar(&c.keep, "keep", false, "leave the stage directory")
	trace := flag.String("attribute", "", "turn off one layer after the other, in builds for that, and bring `FILE` up to date")
	knobs := flag.String("knobs", "all", "only without these layers, or these together (a+b), for -attribute; an empty name is all layers in force")
	sum := flag.String("summarize", "", "write recorded/battery.json from result `FILES` of -out, separated by commas, and run nothing")
	flag.Parse()
	c.cases, c.tiers, c.users, c.modes = words(cases), words(tiers), words(users), words(modes)
	ok, err := true, error(nil)
	switch {
	case *sum != "":
		err = summarize(words(*sum), "conformance/escape/"+batteryFile)
	case *trace != "":
		var only []string
		if *knobs != "all" {
			only = strings.Split(*knobs, ",")
		}
		err = attribute(c, *trace, only)
	default:
		ok, err = run(c)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "escape:", err)
		os.Exit(2)
	case !ok:
		os.Exit(1)
	}
}

// words splits at commas; empty is none.
func words(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}
