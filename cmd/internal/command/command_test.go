package command

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
)

func testTable() *Table {
	return &Table{Program: "prog", Summary: "does things", Commands: []Command{
		{Name: "run", Operands: "-- CMD ARG...", Min: 1, Max: -1, Rest: true, Short: "run it", UsageExit: 125,
			Flags: []Flag{
				{Name: "stdin", Help: "pass stdin on"},
				{Name: "memory", Arg: "SIZE", Help: "bytes", Parse: Size},
				{Name: "env", Arg: "NAME=VALUE", Help: "set a variable", Repeat: true, Parse: Env},
				{Name: "state", Arg: "DIR", Help: "where\n(second line)"},
			},
			Exits:    []Exit{{"0", "fine"}},
			Examples: []Example{{"prog run -- true", "runs true"}}},
		{Name: "log show", Operands: "[INDEX]", Max: 1, Short: "show it"},
		{Name: "log check", Short: "check it"},
	}}
}

func TestParse(t *testing.T) {
	inv, err := testTable().Parse([]string{"run", "--memory=64M", "--env", "A=1", "--env", "B=--x", "--stdin", "--", "ls", "--stdin", "--", "-h"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := inv.Operands, []string{"ls", "--stdin", "--", "-h"}; !slices.Equal(got, want) {
		t.Errorf("operands %q, want %q", got, want)
	}
	if got := Value(inv, "memory", int64(0)); got != 64<<20 {
		t.Errorf("memory %d", got)
	}
	if got, want := All[string](inv, "env"), []string{"A=1", "B=--x"}; !slices.Equal(got, want) {
		t.Errorf("env %q, want %q", got, want)
	}
	if !inv.Has("stdin") || inv.Has("state") || Value(inv, "state", "d") != "d" {
		t.Errorf("stdin %v state %v", inv.Has("stdin"), inv.Has("state"))
	}
	inv, err = testTable().Parse([]string{"log", "show", "7"})
	if err != nil || inv.Command.Name != "log show" || !slices.Equal(inv.Operands, []string{"7"}) {
		t.Errorf("log show 7: %+v, %v", inv, err)
	}
	inv, err = testTable().Parse([]string{"run", "--help", "--nonsense"})
	if err != nil || inv.Help != testTable().Describe(inv.Command) {
		t.Errorf("run --help: %+v, %v", inv, err)
	}
	for _, args := range [][]string{{"log", "--help"}, {"log", "-h", "--nonsense"}} {
		want, _ := testTable().Topic([]string{"log"})
		if inv, err = testTable().Parse(args); err != nil || inv.Help != want || strings.Count(want, "\n  log ") != 2 {
			t.Errorf("%q: %+v, %v", args, inv, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tt := range []struct{ line, text string }{
		{"", "no command given"},
		{"fly", `unknown command "fly"`},
		{"--stdin", `unknown flag "--stdin" before the command`},
		{"log", "log: want one of show, check"},
		{"log burn", `log: unknown command "burn"`},
		{"log --nonsense", `log: unknown command "--nonsense"`},
		{"fly --help", `unknown command "fly"`},
		{"log show 1 2", `unexpected operand "2"`},
		{"log show --json", `unknown flag "--json"`},
		{"run", "nothing to run: no --"},
		{"run --", "missing operand"},
		{"run ls", `unexpected "ls" before --`},
		{"run ls -- x", `unexpected "ls" before --`},
		{"run --stdin --stdin -- x", "--stdin given twice"},
		{"run --state a --state=b -- x", "--state given twice"},
		{"run --stdin=true -- x", "--stdin takes no value"},
		{"run --state -- x", "--state needs a value"},
		{"run --state", "--state needs a value"},
		{"run --mem 1 -- x", `unknown flag "--mem"`},
		{"run -stdin -- x", `unknown flag "-stdin"`},
		{"run -e A=1 -- x", `unknown flag "-e"`},
		{"run --memory 0 -- x", "must be above zero"},
		{"run --memory= -- x", "--memory has an empty value"},
		{"run --state= -- x", "--state has an empty value"},
		{"run --env A -- x", "want NAME=VALUE"},
	} {
		inv, err := testTable().Parse(strings.Fields(tt.line))
		if fault.KindOf(err) != fault.Usage || fault.ReasonOf(err) != "bad_command" || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%q: %v (%s), want %s", tt.line, err, fault.ReasonOf(err), tt.text)
		}
		if !strings.HasPrefix(fault.HintOf(err), "see prog help") && !strings.Contains(fault.HintOf(err), "--") {
			t.Errorf("%q: hint %q", tt.line, fault.HintOf(err))
		}
		if strings.HasPrefix(tt.line, "run") && (inv == nil || inv.Command.UsageExit != 125) {
			t.Errorf("%q: the command and its usage status are lost", tt.line)
		}
	}
}

// TestParseEmpty: an empty operand is not one that was left out; the arguments
// of a command that is run may be empty, its name may not.
func TestParseEmpty(t *testing.T) {
	for _, args := range [][]string{{"log", "show", ""}, {"run", "--", ""}, {"run", "--", "", "x"}, {"run", "--state", "", "--", "x"}} {
		if inv, err := testTable().Parse(args); fault.KindOf(err) != fault.Usage || fault.HintOf(err) == "" || inv == nil {
			t.Errorf("%q: %v, hint %q", args, err, fault.HintOf(err))
		}
	}
	if inv, err := testTable().Parse([]string{"run", "--", "x", ""}); err != nil || len(inv.Operands) != 2 {
		t.Errorf("an empty argument: %v", err)
	}
}

func TestParseErrorKeepsSecrets(t *testing.T) {
	for _, line := range []string{"run --env hunter2 -- x", "run --token=hunter2 -- x", "run --env 9=hunter2 -- x"} {
		if _, err := testTable().Parse(strings.Fields(line)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{"1": 1, "512": 512, "7B": 7, "64M": 64 << 20, "64MiB": 64 << 20, "1GiB": 1 << 30,
		"3K": 3 << 10, "3KiB": 3 << 10, "2T": 2 << 40, "9223372036854775807": math.MaxInt64} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0", "0M", "-1", "+1", "1.5G", "64m", "64MB", "64 M", " 64", "M", "0x10", "1e6", "064",
		"1_000", "9223372036854775808", "8388608T", "9007199254740992K", "٣", "NaN", "inf", "1MM"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for in, want := range map[string]time.Duration{"1.5s": 1500 * time.Millisecond, "200ms": 200 * time.Millisecond, "1m30s": 90 * time.Second, "24h": 24 * time.Hour} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0", "0s", "5", "-1s", "+1s", "1 s", "1d", "10us", "25h", "1e3s", "s", "Inf", "9999999999h", "NaN"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func TestParseEnv(t *testing.T) {
	for _, in := range []string{"A=", "A=1", "_x9=a=b", "PATH=/bin"} {
		if got, err := ParseEnv(in); err != nil || got != in {
			t.Errorf("ParseEnv(%q) = %q, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "A", "=x", "9A=x", "A B=x", "A-B=x", "é=x", "A=\x00"} {
		if _, err := ParseEnv(in); err == nil {
			t.Errorf("ParseEnv(%q): want an error", in)
		}
	}
}

func TestHelp(t *testing.T) {
	table := testTable()
	text, ok := table.Topic([]string{"run"})
	for _, want := range []string{"[--memory SIZE]", "[--env NAME=VALUE]...", "-- CMD ARG...", "(second line)", "fine", "runs true"} {
		if !ok || !strings.Contains(text, want) {
			t.Errorf("help run lacks %q:\n%s", want, text)
		}
	}
	if text, ok := table.Topic([]string{"log"}); !ok || !strings.Contains(text, "log show") || !strings.Contains(text, "log check") {
		t.Errorf("help log: %q", text)
	}
	if _, ok := table.Topic([]string{"fly"}); ok {
		t.Error("help fly: want nothing")
	}
	for _, line := range strings.Split(table.Synopsis(table.Find("run")), "\n") {
		if len(line) > 78 {
			t.Errorf("synopsis line of %d columns: %q", len(line), line)
		}
	}
}

// FuzzParseSize holds the parser to an independent reading: what it accepts is
// digits times a power of 1024 that fits.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"64M", "1GiB", "0", "9223372036854775807", "18446744073709551616K", "1.5G"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := ParseSize(s)
		if err != nil {
			return
		}
		digits := strings.TrimRight(s, "KMGTiB")
		m, perr := strconv.ParseInt(digits, 10, 64)
		if perr != nil || m <= 0 || n < m || n%m != 0 {
			t.Fatalf("ParseSize(%q) = %d", s, n)
		}
	})
}

// FuzzParse: whatever the words, parsing ends in an Invocation or in a usage
// fault, and operands after -- come through unchanged.
func FuzzParse(f *testing.F) {
	f.Add("run\n--memory\n64M\n--\nls\n-l")
	f.Add("log\nshow\n3")
	f.Add("log\n-h\n--")
	f.Add("run\n--env=A=1\n--env=A=2\n--\n--")
	f.Fuzz(func(t *testing.T, text string) {
		words := strings.Split(text, "\n")
		inv, err := testTable().Parse(words)
		if err != nil {
			if fault.KindOf(err) != fault.Usage || fault.HintOf(err) == "" {
				t.Fatalf("%q: %v", words, err)
			}
			return
		}
		if i := slices.Index(words, "--"); inv.Help == "" && inv.Command.Rest && !slices.Equal(inv.Operands, words[i+1:]) {
			t.Fatalf("%q: operands %q", words, inv.Operands)
		}
	})
}
