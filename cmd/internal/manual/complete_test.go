package manual

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"palyra/cmd/internal/command"
)

var sample = command.Table{Program: "pal", Summary: "s", Commands: []command.Command{
	{Name: "exec", Operands: "-- CMD", Rest: true, Min: 1, Max: -1, Short: "run it", Flags: []command.Flag{{Name: "state", Arg: "DIR", Help: "where\nmore"}, {Name: "json", Help: "it's"}}},
	{Name: "journal show", Short: "list", Long: "One.\n\n.two - 'x' \\ y", Flags: []command.Flag{{Name: "json", Help: "x"}}, Exits: []command.Exit{{Code: "0", Meaning: "ok"}}, Examples: []command.Example{{Line: "pal journal show", Does: "lists"}}},
	{Name: "journal verify", Short: "check"},
	{Name: "members set", Short: "give", Takes: []string{"@member", "owner|admin"}, Flags: []command.Flag{{Name: "scope", Arg: "PERMISSION", Values: "run.start|run.cancel"},
		{Name: "tier", Arg: "b|c"}, {Name: "session", Arg: "ID", Values: "@session"}, {Name: "limit", Arg: "N"}}},
}}

// TestCompleteBash asks a real bash what it would offer.
func TestCompleteBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("needs linux: no bash")
	}
	script, err := Complete(&sample, "bash")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		line string // the last word is the one to complete
		want []string
	}{
		{"pal ", []string{"exec", "journal", "members"}},
		{"pal members set --tier ", []string{"b", "c"}},
		{"pal members set --scope run.c", []string{"run.cancel"}},
		{"pal members set --limit ", nil},
		{"pal members set ", []string{"uid:1", "uid:2"}},
		{"pal members set --tier b uid:1 o", []string{"owner"}},
		{"pal members set --session ses_1 ", []string{"uid:1", "uid:2"}},
		{"pal members set --session ", []string{"ses_1"}},
		{"pal members set --t", []string{"--tier"}},
		{"pal j", []string{"journal"}},
		{"pal journal ", []string{"show", "verify"}},
		{"pal journal v", []string{"verify"}},
		{"pal journal show --", []string{"--json", "--help"}},
		{"pal exec --s", []string{"--state"}},
		{"pal exec --json --s", []string{"--state"}},
		{"pal exec --state /usr/bi", []string{"/usr/bin"}},
		{"pal exec -- --s", nil},
		{"pal nothing --j", nil},
	} {
		words := strings.Split(c.line, " ")
		cmd := exec.Command(bash, "--norc", "-c", script+`
pal() { [[ $* == "complete member" ]] && printf 'uid:1\nuid:2\n'; [[ $* == "complete session" ]] && echo ses_1; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pal; printf '%s\n' "${COMPREPLY[@]}"`, "bash")
		cmd.Args = append(cmd.Args, words...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v", c.line, err)
		}
		if got := strings.Fields(string(out)); !slices.Equal(got, c.want) {
			t.Errorf("%q offers %q, want %q", c.line, got, c.want)
		}
	}
}

func TestCompleteOthers(t *testing.T) {
	zsh, err := Complete(&sample, "zsh")
	if err != nil || !strings.HasPrefix(zsh, "#compdef pal\n") {
		t.Errorf("zsh: %.40q, %v", zsh, err)
	}
	fish, err := Complete(&sample, "fish")
	for _, want := range []string{
		"complete -c pal -n '__fish_use_subcommand' -f -a journal -d 'journal commands'\n",
		"complete -c pal -n '__fish_seen_subcommand_from journal; and not __fish_seen_subcommand_from show verify' -f -a verify -d 'check'\n",
		"complete -c pal -n '__fish_seen_subcommand_from exec' -l state -r -d 'where'\n",
		`-l json -d 'it\'s'`,
		"-l tier -x -a 'b c'", "-f -a '(pal complete member 2>/dev/null)'\n",
	} {
		if err != nil || !strings.Contains(fish, want) {
			t.Errorf("fish: no line %q in\n%s", want, fish)
		}
	}
	if _, err := Complete(&sample, "tcsh"); err == nil || !strings.Contains(err.Error(), "tcsh") {
		t.Errorf("an unknown shell: %v", err)
	}
}

func TestMan(t *testing.T) {
	c := sample.Find("journal show")
	page := Man(&sample, c)
	for _, want := range []string{".TH PAL\\-JOURNAL\\-SHOW 1", ".SH NAME\npal\\-journal\\-show \\- list\n", ".PP\n\\&.two \\- 'x' \\e y\n",
		".SH OPTIONS\n.TP\n\\fB\\-\\-json\\fR\nx\n", ".SH EXIT STATUS\n.TP\n\\fB0\\fR\nok\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
	if got := ManName(&sample, c); got != "pal-journal-show.1" {
		t.Errorf("file %q", got)
	}
}
