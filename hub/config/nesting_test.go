package config

import (
	"strings"
	"testing"
)

// TestNesting: what the library would take hours and gigabytes for is refused by line, and no string
// or comment counts.
func TestNesting(t *testing.T) {
	for name, tt := range map[string]struct {
		src  string
		line int
	}{
		"tables":        {"\n\na=" + strings.Repeat("{a=", 80<<10), 3},
		"lists":         {"a=" + strings.Repeat("[", 240<<10), 1},
		"a dotted key":  {"\n" + strings.Repeat("a.", 120<<10) + "a=1", 2},
		"a header":      {"[" + strings.Repeat("a.", 120<<10) + "a]", 1},
		"quoted parts":  {strings.Repeat(`"a".`, 60<<10) + "a=1", 1},
		"behind a text": {"a='''\n{\n'''\nb={" + strings.Repeat("[\n", 40), 19},

		"as deep as may be": {"a=" + strings.Repeat("[", maxNesting) + strings.Repeat("]", maxNesting), 0},
		"one after another": {strings.Repeat("[a]\n", 1000), 0},
		"a text":            {`a="` + strings.Repeat("[.", 100) + `\"` + strings.Repeat("{.", 100) + `"`, 0},
		"a literal":         {`a='` + strings.Repeat("{.", 100) + `'`, 0},
		"texts of lines":    {"a=\"\"\"\n" + strings.Repeat("[.\n", 100) + "\\\"\"\"\nb='''" + strings.Repeat("[.\n", 100) + "'''", 0},
		"a comment":         {"# " + strings.Repeat("[.", 100) + "\na=1 # " + strings.Repeat("[.", 100), 0},
		"numbers":           {"a=[" + strings.Repeat("1.5, ", 100) + "]", 0},
		"an open text":      {"a=\"" + strings.Repeat("[", 100), 0},
		"nothing":           {"", 0},
	} {
		if got := tooDeep(tt.src); got != tt.line {
			t.Errorf("%s: line %d, want %d", name, got, tt.line)
		}
		if tt.line == 0 {
			continue
		}
		_, err := Parse("f", []byte(tt.src), []string{"HOME=/x"})
		if err == nil || !strings.Contains(err.Error(), "nested deeper") {
			t.Errorf("%s: %.200v", name, err)
		}
	}
}
