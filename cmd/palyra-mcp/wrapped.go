package main

import (
	"os/exec"
	"path/filepath"
	"strings"
)

// Claude Code (2.1.330) passes each command to the program in CLAUDE_CODE_SHELL_PREFIX as one
// argument, its hooks and stdio MCP servers too. Of a Bash call that is
//
//	source SNAPSHOT … && eval 'LINE' < /dev/null && pwd -P >| /tmp/claude-XXXX-cwd
//
// The part before eval is the user's own shell set-up, and means nothing in a cell.
const (
	evalMark = " && eval "
	cwdMark  = " < /dev/null && pwd -P >| "
)

// unwrap returns the line of a Bash call of Claude Code and the file that takes the folder it
// ends in. Any other text is a line itself.
func unwrap(text string) (line, cwdFile string) {
	_, rest, found := strings.Cut(text, evalMark)
	at := strings.LastIndex(rest, cwdMark)
	if !found || at < 0 {
		return text, ""
	}
	words, ok := split(rest[:at])
	file, fine := split(rest[at+len(cwdMark):])
	if !ok || !fine || len(words) != 1 || len(file) != 1 || !cwdFileName(file[0]) {
		return text, ""
	}
	return words[0], file[0]
}

// cwdFileName reports whether a path is one that Claude Code makes for a folder's name. The
// text may come from a model: no other file is written.
func cwdFileName(path string) bool {
	ok, err := filepath.Match("claude-*-cwd", filepath.Base(path))
	return err == nil && ok && filepath.IsAbs(path) && filepath.Clean(path) == path
}

// ours returns the words after palyra, if a text is a command of our palyra that serves an
// agent or answers its hook: in a cell it could do neither.
func (a *app) ours(text string) []string {
	words, ok := split(strings.TrimSuffix(text, " || exit 2")) // as setup enters a hook
	if !ok || len(words) < 3 || words[1]+" "+words[2] != "mcp serve" && words[1] != "hook" {
		return nil
	}
	path, err := exec.LookPath(words[0])
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	own, oerr := a.own()
	if oerr == nil {
		own, oerr = filepath.EvalSymlinks(own)
	}
	if err != nil || oerr != nil || path != own {
		return nil
	}
	return words[1:]
}

// split reads words of a shell's line that are plain or quoted: "ok" is false for a line that
// a shell would do more with. Quotes are those that clients write, '…', "…" around single
// quotes, and \ before one character.
func split(text string) (words []string, ok bool) {
	var b strings.Builder
	in := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == ' ':
			if in {
				words = append(words, b.String())
				b.Reset()
			}
			in = false
			continue
		case c == '\'' || c == '"':
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 || c == '"' && strings.ContainsAny(text[i+1:i+1+end], "$`\\!") {
				return nil, false
			}
			b.WriteString(text[i+1 : i+1+end])
			i += end + 1
		case c == '\\' && i+1 < len(text) && text[i+1] != '\n':
			i++
			b.WriteByte(text[i])
		case strings.IndexByte("/-_.+,:@%=", c) >= 0, '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c >= 0x80:
			b.WriteByte(c)
		default:
			return nil, false
		}
		in = true
	}
	if in {
		words = append(words, b.String())
	}
	return words, true
}
