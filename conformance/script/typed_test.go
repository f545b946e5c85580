//go:build linux

package script

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// elsewhere are tests of commands that no script here types.
var elsewhere = map[string]string{
	"approvals watch": "watch_test.go",
	"attest get":      "../../cmd/palyra-ctl/daemon_linux_test.go",
	"backup create":   "../../cmd/palyra-ctl/backup_linux_test.go",
	"backup restore":  "../../cmd/palyra-admin/main_linux_test.go",
	"backup verify":   "../../cmd/palyra-admin/main_linux_test.go",
	"console open":    "../console/kit_test.go",
	"fuzz":            "../../cmd/palyra-dev/fuzz_test.go",
	"mcp accept":      "../egress/servers_linux_test.go",
	"mcp add":         "../egress/servers_linux_test.go",
	"run":             "../../cmd/palyra/run_linux_test.go",
}

// expected are lines of scripts that run nothing, though they may name a command.
var expected = regexp.MustCompile(`(?m)^(#|(! )?(stdout|stderr|grep) ).*$`)

// TestEachIsTyped: a test runs each command as a user types it.
func TestEachIsTyped(t *testing.T) {
	help, err := exec.Command(filepath.Join(tools, "palyra"), "help").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var typed strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		typed.Write(expected.ReplaceAll(b, nil))
	}
	commands, _, _ := strings.Cut(string(help), "\nExit status")
	n := 0
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z]+(?: [a-z]+)?)  +[a-z]`).FindAllStringSubmatch(commands, -1) {
		n++
		name := m[1]
		here := regexp.MustCompile(`palyra ` + name + `(?m:[ ']|$)`).MatchString(typed.String())
		file, there := elsewhere[name]
		if there {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			there = strings.Contains(string(b), `"`+strings.ReplaceAll(name, " ", `", "`)+`"`)
		}
		switch {
		case here && file != "":
			t.Errorf("palyra %s: a script types it: take it off the list", name)
		case !here && !there:
			t.Errorf("palyra %s: no test types it (%q)", name, file)
		}
	}
	if n < 100 {
		t.Errorf("palyra help lists %d commands", n)
	}
}
