package front

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	table := NewTable("ID", "STATE", "TITLE").Keep(0)
	table.Row("ses_00112233445566778899aabbccddeeff", "open", strings.Repeat("a long title ", 8))
	table.Row("ses_1", "", "x\x1b[2J\ny")
	wide := table.Text(0)
	if strings.Contains(wide, "...") || strings.ContainsAny(wide, "\x1b") || strings.Count(wide, "\n") != 3 {
		t.Errorf("%q", wide)
	}
	lines := strings.Split(wide, "\n")
	if !strings.HasPrefix(lines[0], "ID ") || strings.Index(lines[0], "STATE") != strings.Index(lines[1], "open") || !strings.Contains(lines[2], "  -  ") || strings.HasSuffix(lines[2], " ") {
		t.Errorf("%s", wide)
	}
	for _, width := range []int{80, 60, 40, 10} {
		for i, l := range strings.Split(table.Text(width), "\n") {
			if len(l) > max(width, 36+2+5+2+8) {
				t.Errorf("width %d, line %d has %d: %s", width, i, len(l), l)
			}
			if i == 1 && !strings.Contains(l, "ses_00112233445566778899aabbccddeeff") {
				t.Errorf("the id is cut: %s", l)
			}
		}
	}
	if got := NewTable("A", "B").Text(80); got != "A  B\n" {
		t.Errorf("%q", got)
	}
}

func TestPrincipal(t *testing.T) {
	for in, want := range map[string]string{`Palyra::User::"uid:0"`: "uid:0", "uid:0": "uid:0", `Palyra::Agent::"a"`: "agent a", "": "",
		`Palyra::User::"a\"b"`: `Palyra::User::"a\"b"`, `User::"a"`: `User::"a"`, `Palyra::User::"a`: `Palyra::User::"a`} {
		if got := Principal(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
