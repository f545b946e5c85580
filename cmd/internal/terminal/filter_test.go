package terminal

import (
	"regexp"
	"strings"
	"testing"
)

// screenful is what programs draw with, and comes through as it is.
var screenful = []string{
	"text\r\n\ttabbed\b\a é 日本 e\u0301", "\x1b[31;1mred\x1b[0m\x1b[38;5;123m\x1b[38:2::1:2:3m\x1b[m",
	"\x1b[H\x1b[2J\x1b[10;20f\x1b[3A\x1b[B\x1b[C\x1b[D\x1b[K\x1b[1K\x1b[J\x1b[G\x1b[5d\x1b[2L\x1b[M\x1b[P\x1b[4@\x1b[X\x1b[S\x1b[2T\x1b[3b",
	"\x1b[?1049h\x1b[?25l\x1b[?1;2004h\x1b[?7l", "\x1b7\x1b8\x1bM\x1bD\x1bE\x1bH\x1b=\x1b>\x1b(0lqk\x1b(B\x0e\x0f", "\x1b[2;10r\x1b[s\x1b[u\x1b[4h\x1b[4l\x1b[g\x1b[3g\x1b[2 q\x1b[!p",
}

// dropped is the rest, and what remains of it.
var dropped = map[string]string{
	"\x1b]52;c;c3RvbGVu\x07a": "a", "\x1b]52;c;c3RvbGVu\x1b\\b": "b", "\x1b]0;title\x07": "", "\x1b]8;;http://x\x07link\x1b]8;;\x07": "link",
	"\x1b[6n\x1b[5n\x1b[?6n\x1b[c\x1b[>c\x1b[=c\x1bZ\x05": "", "\x1b[21t\x1b[8;99;99t\x1b[22;2t": "", "\x1b[x\x1b[?1$p\x1b[>q\x1b[0q\x1b[i\x1b[5i": "",
	"\x1bP$qm\x1b\\": "", "\x1b_Gi=1;AAAA\x1b\\": "", "\x1b^pm\x1b\\\x1bXsos\x1b\\end": "end", "\x1bP\x1b]0;x\x07": "",
	"\x1b[?1000h\x1b[?1006h\x1b[?1004h\x1b[>4;2m\x1b[>1u\x1b[=5u\x1b[?2026h": "", "\x1b[?1;1000;25h": "\x1b[?1;25h",
	"\x1bc\x1b#8\x1b#3\x1b%G\x1bn\x1b}\x1b)0": "", "\x1b[3J\x1b[03J\x1b[2;3J": "", "\x1b[20h\x1b[2h": "", "\x1b[1;2;3;4;5T\x1b[1;;;;T\x1b[;T\x1b[5;10s": "", "\x1b[99999b\x1b[1;99999H": "",
	"\u009b6n": "6n", "\x9b6n": replacement + "6n", "\u202eabc\u200b\u2066": "abc", "\xff\xc3": replacement, "a\x00\x01\x7f\x0b\x0cb": "ab",
	"\x1b[6\x18n": "n", "\x1b[\x1b[6n\x1b[1m": "\x1b[1m", "\x1b[31\xc3\xa9m": "ém", "\x1b(\x1b[6n": "", "\x1b\x1b]0;x\x1b\\y": "y", "\x1b[" + strings.Repeat("1;", 60) + "m": "",
}

func filtered(parts ...string) string {
	var f filter
	var out strings.Builder
	for _, p := range parts {
		out.Write(f.pass([]byte(p)))
	}
	return out.String()
}

// TestFilter: what passes and what doesn't, however writes cut it.
func TestFilter(t *testing.T) {
	want := make(map[string]string)
	for _, s := range screenful {
		want[s] = s
	}
	for in, out := range dropped {
		want[in] = out
	}
	for in, out := range want {
		for i := range len(in) + 1 {
			if got := filtered(in[:i], in[i:]); got != out {
				t.Errorf("%q cut at %d: %q, want %q", in, i, got, out)
				break
			}
		}
	}
	// A string without an end hides no more than so much.
	if got := filtered("\x1b]" + strings.Repeat("x", maxString+1) + "seen"); got != "seen" {
		t.Errorf("behind a string: %q", got)
	}
}

// TestFilterReset: what lasts is undone, and nothing else is.
func TestFilterReset(t *testing.T) {
	for in, want := range map[string]string{
		"text": "", "\x1b[?1049h\x1b[?1049l": "", "\x1b[1m": "\x1b[m", "\x1b[?1049h": "\x1b[?1049l", "\x1b[?25l\x1b[?7l": "\x1b[?7h\x1b[?25h",
		"\x1b[2;5r": "\x1b7\x1b[r\x1b8\x1b[m", "\x1b(0": "\x0f\x1b(B", "\x0e": "\x0f\x1b(B", "\x1b=": "\x1b>", "\x1b[4h": "\x1b[4l\x1b[m", "\x1b[3g": usualTabs + "\x1b[m", "\x1bH": usualTabs, "\x1b[6 q": "\x1b[0 q", "\x1b[?2004h\x1b[?1h": "\x1b[?1l\x1b[?2004l",
	} {
		var f filter
		f.pass([]byte(in))
		if got := f.reset(); got != want {
			t.Errorf("after %q: %q, want %q", in, got, want)
		}
		if got := f.reset(); got != "" {
			t.Errorf("after %q, again: %q", in, got)
		}
	}
}

// passes is the filter's promise in other words: all that may come out.
var passes = regexp.MustCompile(`^(?:[\a\x08\t\n\r\x0e\x0f]|[^\x00-\x1f\x7f-\x{9f}\x{200b}-\x{200f}\x{202a}-\x{202e}\x{2060}-\x{206f}]|` +
	`\x1b(?:[78DEMH=>]|\([0AB]|\[[0-9;:]*[@A-Z` + "`" + `abdefgmrsuhl]|\[\?[0-9;]*[hl]|\[[0-6]? q|\[!p))*$`)

var answered = regexp.MustCompile(`\x1b\[[?>=]?[0-9;]*[cntxq]|\x1b[]P^_XZc]|\x1b\[\?[0-9;]*(?:100[0-6]|2026)`)

func FuzzFilter(f *testing.F) {
	for _, s := range screenful {
		f.Add([]byte(s), 3)
	}
	for s := range dropped {
		f.Add([]byte(s), 2)
	}
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		at = max(0, min(at, len(b)))
		got := filtered(string(b[:at]), string(b[at:]))
		if !passes.MatchString(got) || answered.MatchString(got) {
			t.Errorf("%q gives %q", b, got)
		}
		if whole := filtered(string(b)); whole != got {
			t.Errorf("%q: %q whole, %q cut at %d", b, whole, got, at)
		}
		if again := filtered(got); again != got {
			t.Errorf("%q gives %q, which gives %q", b, got, again)
		}
	})
}
