package settings

import (
	"fmt"
	"strings"
	"testing"
)

func read(text, format string) (string, error) {
	settings, err := parseLines("import", []byte(text), format)
	var b strings.Builder
	for _, s := range settings {
		fmt.Fprintf(&b, "%d %s=%q ", s.line, s.name, s.Value)
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

// TestExport: what a vault exports is read with its references and times, and nothing else is.
func TestExport(t *testing.T) {
	const one = `{"created":"2026-01-02T03:04:05Z","expires":null,"ref":"vault://global/token","value":"aHVzaA==","version":2}`
	const two = `{"created":"2026-01-02T03:04:05Z","expires":"2027-01-02T03:04:05Z","ref":"vault://skill:x/key","value":"aHVzaCBodXNo","version":1}`
	whole := func(secrets ...string) string {
		return `{"secrets":[` + strings.Join(secrets, ",") + `],"vault":"4XK","version":1}`
	}
	got, err := Parse("import", []byte(whole(one, two)), Format{Name: Export})
	if err != nil || len(got) != 2 || got[0].Ref != "vault://global/token" || string(got[0].Value) != "hush" || got[0].Expires != "" || got[1].Expires != "2027-01-02T03:04:05Z" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"", "{}", "age-encryption.org/v1", whole(), whole(one, one), whole(one) + "x", strings.Replace(whole(one), `"version":1`, `"version":2`, 1),
		whole(strings.Replace(one, "aHVzaA==", "", 1)), whole(strings.Replace(one, `"ref"`, `"also":1,"ref"`, 1)), whole(strings.Replace(one, "aHVzaA==", "aHVzaA", 1)),
		whole(strings.Replace(one, "aHVzaA==", strings.Repeat("aHVz", 22000), 1))} {
		if got, err := Parse("import", []byte(text), Format{Name: Export}); err == nil || strings.Contains(err.Error(), "aHVz") {
			t.Errorf("%.80q: %d, %v", text, len(got), err)
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
		settings, err := parseLines("import", b, format)
		if string(b) != was {
			t.Fatal("the file was changed")
		}
		var again strings.Builder
		for _, s := range settings {
			fmt.Fprintf(&again, "%s=\"%s\"\n", s.name, strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`").Replace(string(s.Value)))
		}
		if err == nil {
			other, err := parseLines("import", []byte(again.String()), "dotenv")
			if err != nil || len(other) != len(settings) {
				t.Fatalf("%q, read again as %q: %v", b, again.String(), err)
			}
			for i, s := range settings {
				if other[i].name != s.name || string(other[i].Value) != string(s.Value) {
					t.Errorf("%s differs", s.name)
				}
			}
		}
	})
}
