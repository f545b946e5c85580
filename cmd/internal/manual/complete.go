package manual

import (
	"fmt"
	"slices"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/internal/fault"
)

// Shells are the shells that Complete knows.
var Shells = []string{"bash", "zsh", "fish"}

// node is a word of the command line and the words that may follow it.
type node struct {
	word  string         // "" for the program itself, "exec", "journal", "journal show"
	next  []next         // verbs, for a noun
	flags []command.Flag // of a command
	takes []string       // of a command's operands
	rest  bool           // after "--" comes another command line
}

type next struct{ word, short string }

// nodes returns the program, then nouns and commands in the table's order.
func nodes(t *command.Table) []node {
	out := []node{{}}
	index := map[string]int{"": 0}
	add := func(word string) int {
		i, ok := index[word]
		if !ok {
			i = len(out)
			index[word] = i
			out = append(out, node{word: word})
		}
		return i
	}
	for _, c := range t.Commands {
		at := add(c.Name)
		out[at].flags, out[at].takes, out[at].rest = c.Flags, c.Takes, c.Rest
		noun, verb, two := strings.Cut(c.Name, " ")
		if two {
			n := add(noun)
			out[n].next = append(out[n].next, next{verb, c.Short})
		}
		if !slices.ContainsFunc(out[0].next, func(n next) bool { return n.word == noun }) {
			short := c.Short
			if two {
				short = noun + " commands"
			}
			out[0].next = append(out[0].next, next{noun, short})
		}
	}
	return out
}

func (n *node) words() string {
	var w []string
	for _, v := range n.next {
		w = append(w, v.word)
	}
	return strings.Join(w, " ")
}

func (n *node) flagWords() string {
	var w []string
	for _, f := range n.flags {
		w = append(w, "--"+f.Name)
	}
	return strings.Join(append(w, "--help"), " ")
}

// Complete returns a completion script for a shell, made from the table and
// from nothing else. It is to be sourced (bash, fish) or put into a folder of
// fpath (zsh). The error names a shell that is not in Shells.
func Complete(t *command.Table, shell string) (string, error) {
	switch shell {
	case "bash":
		return completeBash(t), nil
	case "zsh":
		// zsh speaks bash's interface; one script is then one thing to test.
		return fmt.Sprintf("#compdef %s\nautoload -U +X bashcompinit && bashcompinit\n%s", t.Program, completeBash(t)), nil
	case "fish":
		return completeFish(t), nil
	}
	return "", fault.New(fault.Usage, "bad_command", "completion", fmt.Errorf("unknown shell %q, want one of %s", shell, strings.Join(Shells, ", "))).
		WithHint("see " + t.Program + " help completion")
}

// candidates returns a flag's possible values, in a shell's words: a list, or a command
// that lists; "" if neither is known. If they are a choice, Arg has them: "fresh|void".
func candidates(t *command.Table, values string) string {
	if kind, ok := strings.CutPrefix(values, "@"); ok {
		return fmt.Sprintf("$(%s complete %s 2>/dev/null)", t.Program, kind)
	}
	if strings.Contains(values, "|") {
		return strings.ReplaceAll(values, "|", " ")
	}
	return ""
}

func takes(f *command.Flag) string {
	if f.Values != "" {
		return f.Values
	}
	if strings.Trim(f.Arg, "abcdefghijklmnopqrstuvwxyz|-") == "" {
		return f.Arg
	}
	return ""
}

func completeBash(t *command.Table) string {
	fn := "_" + strings.ReplaceAll(t.Program, "-", "_")
	nodes := nodes(t)
	var known, valued []string
	for _, n := range nodes[1:] {
		known = append(known, "'"+n.word+"'")
		for _, f := range n.flags {
			if f.Arg != "" {
				valued = append(valued, "'"+n.word+"/--"+f.Name+"'")
			}
		}
	}
	if len(valued) == 0 {
		valued = []string{"/"}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `# bash completion for %[1]s, made by: %[1]s completion bash
%[2]s() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} node= words= i w n=0
	COMPREPLY=()
	for ((i = 1; i < COMP_CWORD; i++)); do
		w=${COMP_WORDS[i]}
		case $w in
		--) COMPREPLY=($(compgen -f -- "$cur")); return ;;
		-*) case "$node/$w" in %[4]s) ((i++)) ;; esac; continue ;;
		esac
		case "$node${node:+ }$w" in
		%[3]s) node="$node${node:+ }$w" ;;
		*) ((n++)) ;;
		esac
	done
	case "$node/$prev" in
`, t.Program, fn, strings.Join(known, "|"), strings.Join(valued, "|"))
	for _, n := range nodes {
		for _, f := range n.flags {
			words := candidates(t, takes(&f))
			switch {
			case f.Arg == "":
			case words != "":
				fmt.Fprintf(&b, "\t'%s/--%s') COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); return ;;\n", n.word, f.Name, words)
			case strings.HasPrefix(f.Arg, "DIR"):
				fmt.Fprintf(&b, "\t'%s/--%s') COMPREPLY=($(compgen -d -- \"$cur\")); return ;;\n", n.word, f.Name)
			case strings.Contains(f.Arg, "FILE") || f.Arg == "PATH":
				fmt.Fprintf(&b, "\t'%s/--%s') COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", n.word, f.Name)
			default: // a number, a time, a text: no file is meant
				fmt.Fprintf(&b, "\t'%s/--%s') return ;;\n", n.word, f.Name)
			}
		}
	}
	b.WriteString("\tesac\n\tcase $node in\n")
	for _, n := range nodes {
		fmt.Fprintf(&b, "\t'%s') ", n.word)
		if n.next != nil {
			fmt.Fprintf(&b, "words='%s'; ", n.words())
		}
		for i, takes := range n.takes {
			if words := candidates(t, takes); words != "" {
				fmt.Fprintf(&b, "((n == %d)) && { COMPREPLY=($(compgen -W \"%s\" -- \"$cur\")); [[ $cur == -* ]] || return; }; ", i, words)
			}
		}
		if n.word != "" {
			fmt.Fprintf(&b, "[[ $cur == -* ]] && words='%s'; ", n.flagWords())
		}
		b.WriteString(";;\n")
	}
	fmt.Fprintf(&b, `	esac
	if [[ -n $words ]]; then
		COMPREPLY=($(compgen -W "$words" -- "$cur"))
	else
		COMPREPLY=($(compgen -f -- "$cur"))
	fi
}
complete -o filenames -F %s %s
`, fn, t.Program)
	return b.String()
}

func completeFish(t *command.Table) string {
	var b strings.Builder
	p := t.Program
	fmt.Fprintf(&b, "# fish completion for %[1]s, made by: %[1]s completion fish\n", p)
	for _, n := range nodes(t) {
		seen := "__fish_use_subcommand"
		if n.word != "" {
			seen = "__fish_seen_subcommand_from " + strings.ReplaceAll(n.word, " ", "; and __fish_seen_subcommand_from ")
		}
		if n.next != nil && n.word != "" {
			seen += "; and not __fish_seen_subcommand_from " + n.words()
		}
		for _, v := range n.next {
			fmt.Fprintf(&b, "complete -c %s -n '%s' -f -a %s -d %s\n", p, seen, v.word, fishQuote(v.short))
		}
		for _, takes := range n.takes {
			if words := fishWords(t, takes); words != "" {
				fmt.Fprintf(&b, "complete -c %s -n '%s' -f -a %s\n", p, seen, words)
			}
		}
		for _, f := range n.flags {
			arg := ""
			switch words := fishWords(t, takes(&f)); {
			case words != "":
				arg = " -x -a " + words
			case f.Arg != "":
				arg = " -r"
			}
			help, _, _ := strings.Cut(f.Help, "\n")
			fmt.Fprintf(&b, "complete -c %s -n '%s' -l %s%s -d %s\n", p, seen, f.Name, arg, fishQuote(help))
		}
	}
	return b.String()
}

// fishWords is candidates for fish, quoted.
func fishWords(t *command.Table, values string) string {
	if kind, ok := strings.CutPrefix(values, "@"); ok {
		return fishQuote(fmt.Sprintf("(%s complete %s 2>/dev/null)", t.Program, kind))
	}
	if words := candidates(t, values); words != "" {
		return fishQuote(words)
	}
	return ""
}

// fishQuote quotes for fish, where only \ and ' are special within ”.
func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
