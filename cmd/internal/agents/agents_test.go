package agents

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"palyra/call/egress"
)

// TestPage: the page has a row for each agent, as the table says it.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/AGENTS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range All {
		row := fmt.Sprintf("| %s (%s) | `%s` | `%s` | `%s` | `%s` |\n", a.Title, a.Version, a.Name, a.Host, a.Secret, a.Key)
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/AGENTS.md lacks %s", row)
		}
	}
}

// TestFilled: no word stays, another host is told, and each use of a key can be parsed.
func TestFilled(t *testing.T) {
	for _, row := range All {
		for _, elsewhere := range []bool{false, true} {
			a := row.Filled("https://model.example", "/home", `/a "dir"`, elsewhere)
			texts := slices.Concat(a.Args, a.Env)
			for _, f := range a.Files {
				texts = append(texts, f.Text)
			}
			all := strings.Join(texts, "\n")
			for _, word := range []string{"{url}", "{key}", "{home}", "{dir}"} {
				if strings.Contains(all, word) {
					t.Errorf("%s: %s stays in %s", a.Name, word, all)
				}
			}
			if !strings.Contains(all, `"/a \"dir\""`) {
				t.Errorf("%s isn't told of the workspace: %s", a.Name, all)
			}
			if elsewhere && !strings.Contains(all, "https://model.example") {
				t.Errorf("%s isn't told of its model's host: %s", a.Name, all)
			}
		}
		for _, p := range row.Places {
			if _, err := egress.ParseUse(row.Key + "=" + row.Secret + " " + p + " " + row.Host + " form:" + row.Form); err != nil {
				t.Error(err)
			}
		}
	}
}
