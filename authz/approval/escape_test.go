package approval

import (
	"strconv"
	"strings"
	"testing"

	"palyra/call"
)

func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"":                    "",
		"plain text/0-9 ~":    "plain text/0-9 ~",
		"two\nlines\r\n":      `two\nlines\r\n`,
		"\x1b[31mred\x1b[0m":  `\x1b[31mred\x1b[0m`,
		"\x9b2J":              `\x9b2J`,         // C1 as a byte
		"\u009b2J":            `\u009b2J`,       // C1 as a character
		"abc\x7f\x08":         `abc\x7f\b`,      // DEL, backspace
		"a\u202egpj.exe":      `a\u202egpj.exe`, // right-to-left override
		"a\u2066b\u2069":      `a\u2066b\u2069`,
		"pay\u200bpal\ufeff":  `pay\u200bpal\ufeff`,
		"a\u00a0b\u00adc":     `a\u00a0b\u00adc`,
		"\u0455udo":           `\u0455udo`, // Cyrillic s
		"line\u2028para":      `line\u2028para`,
		"\U000e0041tag":       `\U000e0041tag`,
		"\xff\xc3":            `\xff\xc3`,
		`back\slash "quoted"`: `back\\slash \"quoted\"`,
		`\n`:                  `\\n`,
		"nul\x00":             `nul\x00`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("Escape(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestBare(t *testing.T) {
	for in, want := range map[string]string{`Palyra::User::"uid:0"`: `Palyra::User::"uid:0"`, `\"`: `\\"`, `\\"`: `\\\\"`, "\x1b": `\x1b`} {
		if got := bare(in); got != want {
			t.Errorf("bare(%q) = %s, want %s", in, got, want)
		}
	}
}

// FuzzEscape: printable ASCII only, and nothing is lost, so no two texts look
// the same.
func FuzzEscape(f *testing.F) {
	for _, s := range []string{"", "ls -l", "\x1b]0;title\x07", "\u202e\u2066\u200b\ufeff", "\xff\xfe\x80", `\u202e`, `"`, "\u009b", "é\u0301"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out := Escape(s)
		for _, c := range []byte(out) {
			if c < ' ' || c > '~' {
				t.Fatalf("%q has byte %#x", out, c)
			}
		}
		back, err := strconv.Unquote(`"` + out + `"`)
		if err != nil || back != s {
			t.Fatalf("Escape(%q) = %q reads back as %q, %v", s, out, back, err)
		}
		if back := strings.ReplaceAll(bare(s), `"`, `\"`); back != out {
			t.Fatalf("bare(%q) = %q reads back as %q", s, bare(s), back)
		}
		card := Card(Request{Call: Call{Principal: s, Tool: s, Argv: []string{s, s}, Executable: s, Script: s, Called: []string{s, s}, Readers: []Operand{{Path: s}}, Cwd: s, Workspace: s,
			EnvNames: []string{s}, EnvChanged: []string{s}, Absent: []string{s}, Libraries: []string{s}, Folders: []string{s}, EgressHosts: []string{s}, EgressInspect: []string{s}, EgressSecrets: []call.EgressSecret{{Use: s}}, Capabilities: []string{s}, Stdin: s, StdinHead: s, Tier: s, Limits: s,
			Operands: []Operand{{Path: s}}, Why: []Why{{Policy: s, Reason: s, Where: s}}}})
		for _, line := range strings.Split(card, "\n") {
			for _, c := range []byte(line) {
				if c < ' ' || c > '~' {
					t.Fatalf("card has byte %#x", c)
				}
			}
		}
		if n := strings.Count(card, "\n"); n > 32 {
			t.Fatalf("text added lines to the card: %d\n%s", n, card)
		}
	})
}
