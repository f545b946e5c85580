package console

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"html/template"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"palyra/internal/canon"
)

// visible returns a page with each character that shows nothing, or changes what others look like,
// written out: controls but for newline and tab, and those of the categories Cf, Zl, Zp, Co and Cs,
// and bytes that are no UTF-8. The console's own files have none, so all of them are others' text.
func visible(page []byte) []byte {
	var b strings.Builder
	for i := 0; i < len(page); {
		c, n := utf8.DecodeRune(page[i:])
		switch {
		case c == '\n' || c == '\t':
			b.WriteRune(c)
		case c == utf8.RuneError && n == 1:
			b.WriteString("⟦" + hex.EncodeToString(page[i:i+1]) + "⟧")
		case unicode.In(c, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs, unicode.Variation_Selector) || blank(c):
			fmt.Fprintf(&b, "⟦U+%04X⟧", c)
		default:
			b.WriteRune(c)
		}
		i += n
	}
	return []byte(b.String())
}

// blank are letters and spaces that show nothing, or look like a plain space.
func blank(c rune) bool {
	switch c {
	case 0x115F, 0x1160, 0x3164, 0xFFA0, 0x2800, 0x034F, 0x17B4, 0x17B5:
		return true
	}
	return c != ' ' && unicode.Is(unicode.Zs, c)
}

// funcs are the functions of templates. assets are their places by name.
func funcs(assets map[string]string) template.FuncMap {
	return template.FuncMap{
		"base64url": base64.RawURLEncoding.EncodeToString,
		"asset": func(name string) (string, error) {
			if at, ok := assets[name]; ok {
				return at, nil
			}
			return "", fmt.Errorf("no asset %q", name)
		},
		"when": func(t any) string {
			switch v := t.(type) {
			case time.Time:
				return when(v)
			case *time.Time:
				if v != nil {
					return when(*v)
				}
			case string: // of a statement
				if at, err := time.Parse(time.RFC3339, v); err == nil {
					return when(at)
				}
				return v
			}
			return ""
		},
		"past": func(t *time.Time) bool { return !time.Now().Before(*t) },
		"short": func(d canon.Digest) string {
			s := d.String()
			return s[:min(len(s), len("sha256:")+12)]
		},
		"size":  size,
		"units": func(millionths int64) string { return fmt.Sprintf("%.6g", float64(millionths)/1e6) },
		"words": func(s string) string { return strings.ReplaceAll(s, "_", " ") },
		"tail": func(id string) string { // enough of an id to tell it from others
			if _, rest, ok := strings.Cut(id, "_"); ok && len(rest) > 8 {
				return rest[:8]
			}
			return id
		},
		"gist":    gist,
		"argv":    argv,
		"layerOf": layerOf,
		"card":    rows,
		"nav":     func() []place { return places },
	}
}

// gist is the beginning of a text on one line, the text itself if that is all of it.
func gist(text string) string {
	const most = 160
	line := strings.Join(strings.Fields(text), " ")
	if runes := []rune(line); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return line
}

func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// row is a line of a card; Name is "" for the rest of the line before.
type row struct{ Name, Text string }

// nameWidth is where the second column of a card begins, behind two spaces.
const nameWidth = 14

// rows takes the text of a card apart, so that it fits a narrow window. The first line is a title.
func rows(card string) (out []row) {
	_, rest, _ := strings.Cut(card, "\n")
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\n")
		if len(line) > nameWidth && line[nameWidth-1] == ' ' {
			out = append(out, row{strings.TrimSpace(line[:nameWidth]), line[nameWidth:]})
		} else if line != "" {
			out = append(out, row{"", line})
		}
	}
	return out
}

// argv returns arguments as a shell would be given them, so that their borders are seen.
func argv(args []string) string {
	out := make([]string, len(args))
	for i, a := range args {
		if a != "" && strings.Trim(a, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-") == "" {
			out[i] = a
		} else {
			out[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}
