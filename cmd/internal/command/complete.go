package command

import (
	"fmt"
	"slices"
	"strings"
)

// Shells are the shells that Complete knows.
var Shells = []string{"bash", "zsh", "fish"}

// node is a word of the command line and what may follow it.
type node struct {
	word  string // "" for the program itself, "exec", "journal", "journal show"
	next  []next // verbs, for a noun
	flags []Flag // of a command
	rest  bool   // after "--" comes another command line
}

type next struct{ word, short string }

// nodes returns the program, then nouns and commands in the table's order.
func (t *Table) nodes() []node {
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
		out[at].flags, out[at].rest = c.Flags, c.Rest
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
func (t *Table) Complete(shell string) (string, error) {
	switch shell {
	case "bash":
		return t.completeBash(), nil
	case "zsh":
		// zsh speaks bash's interface; one script is then one thing to test.
		return fmt.Sprintf("#compdef %s\nautoload -U +X bashcompinit && bashcompinit\n%s", t.Program, t.completeBash()), nil
	case "fish":
		return t.completeFish(), nil
	}
	return "", t.usage("unknown_shell", "completion", "unknown shell %q, want one of %s", shell, strings.Join(Shells, ", "))
}

func (t *Table) completeBash() string {
	fn := "_" + strings.ReplaceAll(t.Program, "-", "_")
	var b strings.Builder
	fmt.Fprintf(&b, `# bash completion for %[1]s, made by: %[1]s completion bash
%[2]s() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} node= words= i w
	COMPREPLY=()
	for ((i = 1; i < COMP_CWORD; i++)); do
		w=${COMP_WORDS[i]}
		case $w in
		--) COMPREPLY=($(compgen -f -- "$cur")); return ;;
		-*) continue ;;
		esac
		case "$node${node:+ }$w" in
`, t.Program, fn)
	nodes := t.nodes()
	var known []string
	for _, n := range nodes[1:] {
		known = append(known, "'"+n.word+"'")
	}
	fmt.Fprintf(&b, "\t\t%s) node=\"$node${node:+ }$w\" ;;\n\t\tesac\n\tdone\n\tcase \"$node/$prev\" in\n", strings.Join(known, "|"))
	for _, n := range nodes {
		for _, f := range n.flags {
			switch {
			case strings.HasPrefix(f.Arg, "DIR"):
				fmt.Fprintf(&b, "\t'%s/--%s') COMPREPLY=($(compgen -d -- \"$cur\")); return ;;\n", n.word, f.Name)
			case f.Arg != "":
				fmt.Fprintf(&b, "\t'%s/--%s') COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n", n.word, f.Name)
			}
		}
	}
	b.WriteString("\tesac\n\tcase $node in\n")
	for _, n := range nodes {
		fmt.Fprintf(&b, "\t'%s') ", n.word)
		if n.next != nil {
			fmt.Fprintf(&b, "words='%s'; ", n.words())
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

func (t *Table) completeFish() string {
	var b strings.Builder
	p := t.Program
	fmt.Fprintf(&b, "# fish completion for %[1]s, made by: %[1]s completion fish\n", p)
	for _, n := range t.nodes() {
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
		for _, f := range n.flags {
			arg := ""
			if f.Arg != "" {
				arg = " -r"
			}
			help, _, _ := strings.Cut(f.Help, "\n")
			fmt.Fprintf(&b, "complete -c %s -n '%s' -l %s%s -d %s\n", p, seen, f.Name, arg, fishQuote(help))
		}
	}
	return b.String()
}

// fishQuote quotes for fish, where only \ and ' are special within ”.
func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'"
}
