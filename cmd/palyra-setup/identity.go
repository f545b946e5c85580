package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"unicode"
)

// A cell's HOME is its own, so git finds no name there to commit under. Setup declares the one that
// git would take on the host, as far as that is plain to see.

// git declares the names of the user's and the project's git configuration.
func (k *kit) git() {
	base := firstOf(k.getenv("XDG_CONFIG_HOME"), filepath.Join(k.home, ".config"))
	files := []string{filepath.Join(base, "git", "config"), filepath.Join(k.home, ".gitconfig")}
	if own := k.getenv("GIT_CONFIG_GLOBAL"); own != "" {
		files = []string{own}
	}
	who := map[string]string{}
	for _, file := range append(append([]string{firstOf(k.getenv("GIT_CONFIG_SYSTEM"), "/etc/gitconfig")}, files...), filepath.Join(k.dir, ".git", "config")) {
		b, err := os.ReadFile(file)
		if err == nil && !readIdentity(b, who) {
			return
		}
	}
	for _, x := range []struct{ key, variable string }{{"name", "NAME"}, {"email", "EMAIL"}} {
		for _, role := range []string{"GIT_AUTHOR_", "GIT_COMMITTER_"} {
			if v := firstOf(k.getenv(role+x.variable), who[x.key]); plain(v) {
				k.env = append(k.env, role+x.variable+"="+v)
			}
		}
	}
}

// readIdentity puts user.name and user.email of a git configuration (git-config(1)) into who. It's
// false if that may come from another file, by an include.
func readIdentity(b []byte, who map[string]string) bool {
	section := ""
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if strings.HasPrefix(line, "[") {
			section, line, _ = strings.Cut(line[1:], "]")
			section = strings.ToLower(section)
			if strings.HasPrefix(section, "include") {
				return false
			}
			line = strings.TrimSpace(line)
		}
		key, value, found := strings.Cut(line, "=")
		if key = strings.ToLower(strings.TrimSpace(key)); found && section == "user" && (key == "name" || key == "email") {
			value = strings.TrimSpace(value)
			if n := len(value); n > 1 && value[0] == '"' && value[n-1] == '"' {
				value = value[1 : n-1]
			}
			who[key] = value // an odd one isn't plain, and so counts for nothing
		}
	}
	return true
}

// plain says that a value is what it looks like: without quotes, escapes, comments or controls.
func plain(v string) bool {
	return v != "" && len(v) <= 256 && !strings.ContainsAny(v, "\"\\#;<>") && !strings.ContainsFunc(v, func(r rune) bool { return !unicode.IsPrint(r) })
}
