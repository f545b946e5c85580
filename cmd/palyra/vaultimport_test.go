package main

import (
	"fmt"
	"strings"
	"testing"
)

func read(text, format string) (string, error) {
	settings, err := parseSettings("import", []byte(text), format)
	var b strings.Builder
	for _, s := range settings {
		fmt.Fprintf(&b, "%d %s=%q ", s.line, s.name, s.value.Bytes())
		s.value.Wipe()
	}
	return strings.TrimSpace(b.String()), err
}

func TestSettings(t *testing.T) {
	for _, c := range []struct{ format, text, want string }{
		{"dotenv", "", ""},
		{"dotenv", "# c\n\n  \t\nA=b\n", `4 A="b"`},
		{"dotenv", "A=b", `1 A="b"`},
		{"dotenv", "export A=b c \t# d\r\nexport\tB=1\r\n  # e", `1 A="b c" 2 B="1"`},
		{"dotenv", "export=1", `1 export="1"`},
		{"dotenv", "A='b # $x \\n' # c\nB=\"x\\n\\\"\\$\\\\y\"", "1 A=\"b # $x \\\\n\" 2 B=\"x\\n\\\"$\\\\y\""},
		{"dotenv", "A=\"-----\nb\n-----\"\nB='c\n\nd'\nC=e", `1 A="-----\nb\n-----" 4 B="c\n\nd" 7 C="e"`},
		{"dotenv", "A=b=c==", `1 A="b=c=="`},
		{"env", "A=b # c\nB='d' \nC_1=$x", `1 A="b # c" 2 B="'d' " 3 C_1="$x"`},
		{"env", "A=b\nc\x00B=d\x00", `1 A="b\nc" 2 B="d"`},
	} {
		if got, err := read(c.text, c.format); got != c.want || err != nil {
			t.Errorf("%s %q: %s, %v; want %s", c.format, c.text, got, err, c.want)
		}
	}
	for _, c := range []struct {
		format, text string
		line         int
	}{
		{"dotenv", "hush", 1}, {"dotenv", "A=b\nhush hush", 2}, {"dotenv", "A =hush", 1}, {"dotenv", "A= hush", 1},
		{"dotenv", "1A=hush", 1}, {"dotenv", "A=hu#sh", 1}, {"dotenv", "A=hu$sh", 1}, {"dotenv", "A=hu'sh", 1}, {"dotenv", "A=hu\\sh", 1},
		{"dotenv", "\n\nA='hush", 3}, {"dotenv", "A=\"hush", 1}, {"dotenv", "A=\"hush\\", 1}, {"dotenv", "A=\"hu\\sh\"", 1}, {"dotenv", "A=\"hush$\"", 1},
		{"dotenv", "A='hush'hush", 1}, {"dotenv", "A='hush'#c", 1}, {"dotenv", "A=\"hush\" hush", 1}, {"dotenv", "A=\nB=hush", 1}, {"dotenv", "A=''", 1},
		{"dotenv", "A='a\nb'\nA=hush", 3}, {"dotenv", "A=hush\x00", 1}, {"dotenv", "A=hush\rB=c", 1}, {"dotenv", "A=" + strings.Repeat("hush", 1<<14) + "x", 1},
		{"dotenv", "export", 1}, {"dotenv", "\u00c4=hush", 1},
		{"env", "A=b\n\nB=hush", 2}, {"env", "# hush", 1}, {"env", "A=b\nhush", 2}, {"env", "=hush", 1}, {"env", "A=b\x00hush\x00", 2}, {"env", "A=", 1},
	} {
		_, err := read(c.text, c.format)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("line %d: ", c.line)) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s %.40q: %v, want line %d", c.format, c.text, err, c.line)
		}
	}
}

// FuzzSettings: a file is refused, or a file that quotes what was read is read the same.
func FuzzSettings(f *testing.F) {
	f.Add([]byte("# c\nexport A=b # d\nB='x\ny'\nC=\"\\n\\$\"\n"), true)
	f.Add([]byte("A=b\x00B=c\nd\x00"), false)
	f.Fuzz(func(t *testing.T, b []byte, dotenv bool) {
		format := "env"
		if dotenv {
			format = "dotenv"
		}
		was := string(b)
		settings, err := parseSettings("import", b, format)
		if string(b) != was {
			t.Fatal("the file was changed")
		}
		var again strings.Builder
		for _, s := range settings {
			fmt.Fprintf(&again, "%s=\"%s\"\n", s.name, strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(string(s.value.Bytes())))
		}
		if err == nil {
			other, err := parseSettings("import", []byte(again.String()), "dotenv")
			if err != nil || len(other) != len(settings) {
				t.Fatalf("%q, read again as %q: %v", b, again.String(), err)
			}
			for i, s := range settings {
				if other[i].name != s.name || string(other[i].value.Bytes()) != string(s.value.Bytes()) {
					t.Errorf("%s differs", s.name)
				}
				other[i].value.Wipe()
			}
		}
		for _, s := range settings {
			s.value.Wipe()
		}
	})
}
