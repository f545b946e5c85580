package main

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// cardCases are 98: a program that draws on the terminal which its output goes
// to, where a person may be asked about another call. Writing is not refused;
// what comes to the terminal must not act on it.
func cardCases() []attackCase {
	var out []attackCase
	for _, v := range []struct{ how, attack, acts string }{
		{"csi", "clear the terminal and draw another card", "\x1b"},
		{"osc", "name the window", "\x1b"},
		{"c1", "name it with U+009B", "\u009b"},
		{"eight-bit", "name it with byte 0x9b", "\x9b"},
		{"carriage", "overwrite the line", "\r"},
		{"backspace", "overwrite the word", "\b"},
		{"bidi", "turn the text around", "\u202e"},
		{"zero-width", "hide a character", "\u200b"},
	} {
		out = append(out, attackCase{number: 98, variant: v.how, name: "repainted-card", attack: v.attack, stopped: both("OPEN"),
			note: "OPEN: the terminal shows it as text",
			stage: func(s *stage) (scene, error) {
				return scene{probe: "repaint", args: []string{"how=" + v.how}, opt: options{wrap: []string{s.b.attack, "on-screen", "--"}},
					canary: func(o *outcome) (bool, string) {
						shown := o.stdout.kept
						if bytes.Contains(shown, []byte(v.acts)) && (v.acts != "\x9b" || !utf8.Valid(shown)) {
							return true, fmt.Sprintf("the terminal was sent %q", v.acts)
						}
						return false, ""
					}}, nil
			}})
	}
	return out
}
