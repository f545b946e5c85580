// Package command is a table of subcommands. One entry gives a command's flags, their
// meaning, its exit statuses and its usage; parsing, help text and usage errors all come
// from that entry.
//
//	table := command.Table{Program: "palyra", Commands: []command.Command{...}}
//	inv, err := table.Parse(os.Args[1:])
//
// # Grammar
//
//	palyra NAME [FLAG]... [OPERAND]...
//	palyra exec [FLAG]... -- CMD [ARG]...
//	palyra GROUP --help
//
// A flag is written "--name value" or "--name=value"; a switch is "--name"
// alone. There are no one-letter flags but -h, no abbreviations and no flag may
// be given twice unless the entry says so. "--" ends the flags. For a command
// with Rest everything after "--" is an operand and nothing before it is.
//
// No flag's value is empty, and no operand but the arguments of a command that is run.
// Otherwise a script's unset variable would count as "not given" and mean the default.
//
// A parse error is a fault of kind Usage with a hint; it never quotes more than
// the word that is wrong.
//
// The package does not run anything and holds no state.
package command

import (
	"fmt"
	"slices"
	"strings"

	"palyra/internal/fault"
)

// Table is a program's commands.
type Table struct {
	Program  string
	Summary  string    // one line
	Begin    []Example // where a new user begins, for the overview
	Commands []Command
	Exits    []Exit  // what the statuses of the commands have in common, for the overview
	Groups   []Group // how the overview orders the commands; without any as they stand
}

// Group is a part of the overview: the commands with these first words, in their order.
type Group struct {
	Title string
	Nouns []string
}

// Section is a Group with its commands.
type Section struct {
	Title    string
	Commands []*Command
}

// Sections returns the groups with their commands; without Groups one of all commands.
func (t *Table) Sections() (out []Section) {
	groups := t.Groups
	if len(groups) == 0 {
		groups = []Group{{"Commands", t.nouns()}}
	}
	for _, g := range groups {
		s := Section{Title: g.Title}
		for _, want := range g.Nouns {
			for i := range t.Commands {
				if noun, _, _ := strings.Cut(t.Commands[i].Name, " "); noun == want {
					s.Commands = append(s.Commands, &t.Commands[i])
				}
			}
		}
		out = append(out, s)
	}
	return out
}

// Command is one entry. Name may be two words ("attest verify").
type Command struct {
	Name     string
	Program  string // that does it, if another than the table's
	Operands string // how the operands are written in the synopsis, "FILE", "-- CMD ARG..."
	Min, Max int    // number of operands; Max < 0: no bound
	Rest     bool   // operands stand after a mandatory "--" and are not looked at
	Short    string // one line, lower-case, no period
	Long     string // paragraphs, wrapped at 78 columns
	// Takes describes each operand, for completion: a list of words "a|b|c", or "@kind" for
	// the list that the program prints for "complete kind".
	Takes    []string
	Flags    []Flag
	Exits    []Exit
	Examples []Example
	// UsageExit is the status of a usage error, 0 for 2.
	UsageExit int
}

// Flag is one flag of a command. Name is without dashes.
type Flag struct {
	Name   string
	Arg    string // placeholder; "" makes it a switch
	Help   string // one or more lines
	Repeat bool   // may be given more than once
	Values string // what it takes, as Command.Takes; "" is what Arg says: "a|b", or a path
	// Parse checks and converts the value; nil keeps the string.
	Parse func(string) (any, error)
}

// Exit is one documented exit status.
type Exit struct {
	Code    string // "0", "128+n"
	Meaning string
}

// Example is a command line and its effect.
type Example struct {
	Line string
	Does string
}

// Invocation is a parsed command line.
type Invocation struct {
	Command  *Command // nil if the help of a group was asked for
	Help     string   // to print if -h or --help was given: nothing else was checked
	Operands []string

	values map[string][]any
}

// Has reports whether the flag was given.
func (i *Invocation) Has(name string) bool { return len(i.values[name]) > 0 }

// All returns the values of a repeated flag in order.
func All[T any](i *Invocation, name string) []T {
	var out []T
	for _, v := range i.values[name] {
		out = append(out, v.(T))
	}
	return out
}

// Value returns the flag's value, or def if it was not given. T is what the
// flag's Parse returns, string if it has none; asking for another type is our
// bug and panics.
func Value[T any](i *Invocation, name string, def T) T {
	if vs := i.values[name]; len(vs) > 0 {
		return vs[0].(T)
	}
	return def
}

// Find returns the command with that name, or nil.
func (t *Table) Find(name string) *Command {
	for i := range t.Commands {
		if t.Commands[i].Name == name {
			return &t.Commands[i]
		}
	}
	return nil
}

// Parse finds the command that args name and parses the rest. On an error the
// returned Invocation is nil, or holds the Command if it is known.
func (t *Table) Parse(args []string) (*Invocation, error) {
	if text, ok := t.groupHelp(args); ok {
		return &Invocation{Help: text}, nil
	}
	c, rest, err := t.split(args)
	if err != nil {
		return nil, err
	}
	inv := &Invocation{Command: c, values: map[string][]any{}}
	if err := t.parse(inv, rest); err != nil {
		return &Invocation{Command: c}, err
	}
	return inv, nil
}

// groupHelp returns the help that args ask for, if they name the first word of several commands
// and no command.
func (t *Table) groupHelp(args []string) (string, bool) {
	if len(args) < 2 || !asksHelp(args[1]) || t.Find(args[0]) != nil || !slices.Contains(t.nouns(), args[0]) {
		return "", false
	}
	return t.Topic(args[:1])
}

func asksHelp(arg string) bool { return arg == "-h" || arg == "--help" }

// split takes one or two words off args that name a command.
func (t *Table) split(args []string) (*Command, []string, error) {
	if len(args) == 0 {
		return nil, nil, t.usage("bad_command", "", "no command given")
	}
	if c := t.Find(args[0]); c != nil {
		return c, args[1:], nil
	}
	var subs []string
	for _, c := range t.Commands {
		if noun, verb, ok := strings.Cut(c.Name, " "); ok && noun == args[0] {
			subs = append(subs, verb)
		}
	}
	switch {
	case len(subs) == 0 && strings.HasPrefix(args[0], "-"):
		return nil, nil, t.usage("bad_command", "", "unknown flag %q before the command", args[0])
	case len(subs) == 0:
		return nil, nil, t.near(args[0], t.nouns(), t.usage("bad_command", "", "unknown command %q", args[0]))
	case len(args) == 1:
		return nil, nil, t.usage("bad_command", args[0], "%s: want one of %s", args[0], strings.Join(subs, ", "))
	}
	if c := t.Find(args[0] + " " + args[1]); c != nil {
		return c, args[2:], nil
	}
	return nil, nil, t.near(args[1], subs, t.usage("bad_command", args[0], "%s: unknown command %q, want one of %s", args[0], args[1], strings.Join(subs, ", ")))
}

// nouns returns the first words of the commands.
func (t *Table) nouns() (out []string) {
	for _, c := range t.Commands {
		noun, _, _ := strings.Cut(c.Name, " ")
		if !slices.Contains(out, noun) {
			out = append(out, noun)
		}
	}
	return out
}

// near adds to err the word that a mistyped one most likely meant.
func (t *Table) near(word string, words []string, err *fault.Error) *fault.Error {
	best, least := "", 1+max(1, len(word)/3)
	for _, w := range words {
		if d := distance(word, w); d < least {
			best, least = w, d
		}
	}
	if best == "" {
		return err
	}
	return err.WithHint(fmt.Sprintf("did you mean %s? %s", best, err.Hint))
}

// distance returns the number of letters to change, add, drop or exchange with their neighbour.
// A word longer than every command is far from all.
func distance(a, b string) int {
	if len(a) > 32 || len(b) > 32 {
		return 64
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(change, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

func (t *Table) parse(inv *Invocation, args []string) error {
	c := inv.Command
	ended := false
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		switch {
		case a == "--":
			ended = true
			inv.Operands = append(inv.Operands, args...)
			args = nil
		case asksHelp(a):
			inv.Help = t.Describe(c)
			return nil
		case len(a) > 1 && a[0] == '-':
			var err error
			if args, err = t.flag(inv, a, args); err != nil {
				return err
			}
		case c.Rest:
			return t.usage("bad_command", c.Name, "unexpected %q before --", a).
				WithHint(fmt.Sprintf("put -- before the command: %s %s -- CMD ARG...", t.Program, c.Name))
		default:
			inv.Operands = append(inv.Operands, a)
		}
	}
	switch n := len(inv.Operands); {
	case c.Rest && !ended:
		return t.usage("bad_command", c.Name, "nothing to run: no -- CMD")
	case n < c.Min:
		return t.usage("bad_command", c.Name, "missing operand: want %s", strings.TrimPrefix(c.Operands, "-- "))
	case c.Max >= 0 && n > c.Max:
		return t.usage("bad_command", c.Name, "unexpected operand %q", inv.Operands[c.Max])
	}
	for i, o := range inv.Operands {
		if o == "" && (i == 0 || !c.Rest) {
			return t.usage("bad_command", c.Name, "operand %d is empty: want %s", i+1, strings.TrimPrefix(c.Operands, "-- "))
		}
	}
	return nil
}

// flag parses the flag word a, whose value may be the first of args.
func (t *Table) flag(inv *Invocation, a string, args []string) ([]string, error) {
	c := inv.Command
	name, value, inline := strings.Cut(strings.TrimPrefix(a, "--"), "=")
	var f *Flag
	for i := range c.Flags {
		if strings.HasPrefix(a, "--") && c.Flags[i].Name == name {
			f = &c.Flags[i]
		}
	}
	word, _, _ := strings.Cut(a, "=")
	switch {
	case f == nil:
		var flags []string
		for _, f := range c.Flags {
			flags = append(flags, "--"+f.Name)
		}
		return nil, t.near(word, flags, t.usage("bad_command", c.Name, "unknown flag %q", word))
	case inv.Has(name) && !f.Repeat:
		return nil, t.usage("bad_command", c.Name, "flag --%s given twice", name)
	case f.Arg == "" && inline:
		return nil, t.usage("bad_command", c.Name, "flag --%s takes no value", name)
	case f.Arg == "":
		inv.values[name] = []any{true}
		return args, nil
	case !inline && len(args) == 0, !inline && args[0] == "--":
		return nil, t.usage("bad_command", c.Name, "flag --%s needs a value: --%s %s", name, name, f.Arg)
	case !inline:
		value, args = args[0], args[1:]
	}
	if value == "" {
		return nil, t.usage("bad_command", c.Name, "flag --%s has an empty value: want --%s %s", name, name, f.Arg).
			WithHint(fmt.Sprintf("leave --%s out, or give it a value: %s help %s", name, t.Program, c.Name))
	}
	var v any = value
	if f.Parse != nil {
		var err error
		if v, err = f.Parse(value); err != nil {
			bad := t.usage("bad_command", c.Name, "flag --%s: %v", name, err)
			if hint := fault.HintOf(err); hint != "" { // it says more than where the help is
				bad = bad.WithHint(hint)
			}
			return nil, bad
		}
	}
	inv.values[name] = append(inv.values[name], v)
	return args, nil
}

func (t *Table) usage(reason, name, format string, args ...any) *fault.Error {
	topic := strings.TrimRight("help "+name, " ")
	op := name
	if op == "" {
		op = t.Program
	}
	return fault.New(fault.Usage, reason, op, fmt.Errorf(format, args...)).
		WithHint(fmt.Sprintf("see %s %s", t.Program, topic))
}
