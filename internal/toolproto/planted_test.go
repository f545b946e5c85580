package toolproto

import (
	"strings"
	"testing"
)

// TestPlantedHead: git takes no folder without a HEAD for a repository, and each write of a tool
// has one path.
func TestPlantedHead(t *testing.T) {
	for name, want := range map[string]string{"HEAD": PlaceGit, "lib/head": PlaceGit, "HEAD.md": "", "lib/HEAD/x": ""} {
		if f, ok := Planted(name); ok != (want != "") || f.Kind != want {
			t.Errorf("%s: %q, want %q", name, f.Kind, want)
		}
	}
}

// TestPlantedNames: the names by which programs find what they run or obey, some in any case, and
// names like them that no program looks for. Each list of places is the first that matches.
func TestPlantedNames(t *testing.T) {
	for kind, names := range map[string]string{
		PlaceHook:    ".git/hooks/pre-commit .husky/_/h .lintstagedrc .lintstagedrc.mjs lint-staged.config.js lefthook.toml .config/lefthook.yml lefthook-local.yml .lefthook/pre-push/x.sh prek.toml",
		PlaceGit:     ".git/config a/.gitmodules .gitattributes",
		PlaceShell:   ".envrc mise.local.toml .mise.ci.toml .config/mise.toml .mise/config.toml .autoenv.zsh",
		PlaceEditor:  ".vscode/tasks.json a/x.code-workspace .helix/languages.toml .nvim/init.lua .gitpod.yml .replit rust-analyzer.toml",
		PlaceCI:      ".github/workflows/x.yml azure-pipelines.yaml .azure-pipelines/x.yml appveyor.yml netlify.toml .tekton/x.yaml .builds/x.yml .readthedocs.yaml zuul.d/x",
		PlaceAgent:   "CLAUDE.md .clinerules .clinerules/x.md .aider.conf.yml opencode.jsonc crush.json AGENTS.override.md .github/hooks/x.json .github/agents/x.md .qwen/settings.json .claude-plugin/plugin.json",
		PlacePackage: ".npmrc gradle/wrapper/gradle-wrapper.properties a/gradle/wrapper/gradle-wrapper.jar .bazelrc tools/bazel NuGet.config pnpm-workspace.yaml uv.toml usercustomize.py .jvmopts",
		PlaceTool:    ".gdbinit .latexmkrc ansible.cfg .pylintrc .Renviron .valgrindrc",
		PlaceBuild:   "Makefile conftest.py x.pth",
		"":           "mise.md lefthook crates/lefthook.d/x x.code-workspaces gradle/wrapper tools/bazel/x .github/README.md readthedocs.yml zuul.d hooks/pre-commit",
	} {
		for _, name := range strings.Fields(names) {
			if f, _ := Planted(name); f.Kind != kind {
				t.Errorf("%s: %q, want %q", name, f.Kind, kind)
			}
		}
	}
}

// BenchmarkPlanted is what each name of a layer pays.
func BenchmarkPlanted(b *testing.B) {
	for b.Loop() {
		PlantedNode("src/internal/server/handlers/users_test.go", false)
	}
}
