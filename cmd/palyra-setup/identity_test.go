package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestIdentity: commits get the name that git takes on the host, or none.
func TestIdentity(t *testing.T) {
	const both = "[user]\n\tname = Ada Lovelace\n\temail = ada@example.com\n"
	for name, c := range map[string]struct {
		global, xdg, project string
		env                  map[string]string
		want                 []string
	}{
		"none":            {want: nil},
		"of the user":     {global: both, want: []string{"GIT_AUTHOR_NAME=Ada Lovelace", "GIT_COMMITTER_NAME=Ada Lovelace", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_COMMITTER_EMAIL=ada@example.com"}},
		"of the project":  {global: both, project: "[core]\n\tbare = false\n[USER] Email = \"work@example.com\"\n", want: []string{"GIT_AUTHOR_NAME=Ada Lovelace", "GIT_COMMITTER_NAME=Ada Lovelace", "GIT_AUTHOR_EMAIL=work@example.com", "GIT_COMMITTER_EMAIL=work@example.com"}},
		"elsewhere":       {xdg: "[user]\nname=A", want: []string{"GIT_AUTHOR_NAME=A", "GIT_COMMITTER_NAME=A"}},
		"a variable":      {global: both, env: map[string]string{"GIT_AUTHOR_NAME": "B"}, want: []string{"GIT_AUTHOR_NAME=B", "GIT_COMMITTER_NAME=Ada Lovelace", "GIT_AUTHOR_EMAIL=ada@example.com", "GIT_COMMITTER_EMAIL=ada@example.com"}},
		"an include":      {global: both + "[includeIf \"gitdir:~/work/\"]\n\tpath = work\n", want: nil},
		"another section": {global: "[user \"x\"]\nname = A\n[users]\nname = B\n", want: nil},
		"not plain":       {global: "[user]\nname = \"A # B\"\nemail = a\\tb\n", want: nil},
		"hostile":         {project: "[user]\nname = A\x1b]0;x\nemail = \x00\n", want: nil},
	} {
		home, project := t.TempDir(), t.TempDir()
		for file, text := range map[string]string{home + "/.gitconfig": c.global, home + "/.config/git/config": c.xdg, project + "/.git/config": c.project} {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if text != "" {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		k := kitOf(project, home, func(n string) string {
			if n == "GIT_CONFIG_SYSTEM" {
				return "/dev/null"
			}
			return c.env[n]
		})
		if !slices.Equal(k.env, c.want) {
			t.Errorf("%s: %q, want %q", name, k.env, c.want)
		}
	}
}
