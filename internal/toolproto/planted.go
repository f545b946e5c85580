package toolproto

import (
	"path"
	"strings"
)

// planted are paths at which a file is run, or decides what is run, by a
// program that nobody asked: a version control system, an editor, a shell, an
// agent, a build. A pattern is matched, without regard to case, at any depth.
// Writing there is not refused, it is what some calls are for; whoever reads the
// result or approves the call is told.
var planted = []struct{ pattern, kind, why string }{
	{".git/hooks/**/*", "git_hook", "git runs it"},
	{".git/**/*", "git_config", "git's own files decide what git runs"},
	{".git", "git_config", "leads git to another repository and its configuration"},
	{".gitattributes", "git_config", "names filters and drivers that git runs"},
	{".gitmodules", "git_config", "names repositories that git fetches"},
	{".gitconfig", "git_config", "names programs that git runs"},
	{".hg/**/*", "hg_config", "mercurial's own files decide what it runs"},
	{".husky/**/*", "git_hook", "git runs it through husky"},
	{".githooks/**/*", "git_hook", "git runs it if core.hooksPath says so"},
	{".pre-commit-config.yaml", "git_hook", "pre-commit runs what it names"},
	{"lefthook.yml", "git_hook", "lefthook runs what it names"},
	{".envrc", "shell", "direnv runs it when somebody enters the folder"},
	{".mise.toml", "shell", "mise runs what it names"},
	{".bashrc", "shell", "a shell runs it"},
	{".bash_profile", "shell", "a shell runs it"},
	{".profile", "shell", "a shell runs it"},
	{".zshrc", "shell", "a shell runs it"},
	{".zshenv", "shell", "a shell runs it"},
	{".ssh/**/*", "shell", "decides who may log in and what runs then"},
	{".vscode/**/*", "editor", "the editor runs tasks and tools that it names"},
	{".idea/**/*", "editor", "the editor runs tasks and tools that it names"},
	{".devcontainer/**/*", "editor", "commands run when the container starts"},
	{".vim/**/*", "editor", "the editor runs it"},
	{".exrc", "editor", "the editor runs it"},
	{".mcp.json", "agent", "an agent starts the servers that it names"},
	{".claude/**/*", "agent", "an agent obeys it"},
	{".cursor/**/*", "agent", "an agent obeys it"},
	{".codex/**/*", "agent", "an agent obeys it"},
	{".gemini/**/*", "agent", "an agent obeys it"},
	{"claude.md", "agent", "an agent obeys it"},
	{"agents.md", "agent", "an agent obeys it"},
	{".github/workflows/**/*", "ci", "a build server runs it"},
	{".github/actions/**/*", "ci", "a build server runs it"},
	{".gitlab-ci.yml", "ci", "a build server runs it"},
	{".circleci/**/*", "ci", "a build server runs it"},
	{"jenkinsfile", "ci", "a build server runs it"},
	{"makefile", "build", "make runs it"},
	{"gnumakefile", "build", "make runs it"},
	{"package.json", "build", "npm runs its scripts, some when it installs"},
	{".npmrc", "build", "decides where npm fetches from"},
	{"setup.py", "build", "pip runs it when it installs"},
	{"conftest.py", "build", "pytest runs it"},
	{"build.rs", "build", "cargo runs it when it builds"},
	{".cargo/config.toml", "build", "names programs that cargo runs"},
	{"*.pth", "build", "python runs it at every start"},
	{"sitecustomize.py", "build", "python runs it at every start"},
}

// Planted returns the flag for a written path, unescaped, and whether there is
// one. It is a list of known places and cannot be complete.
func Planted(name string) (Flag, bool) {
	parts := strings.Split(strings.ToLower(name), "/")
	for _, p := range planted {
		for from := range parts {
			rest := strings.Join(parts[from:], "/")
			hit := false
			if strings.Contains(p.pattern, "/") {
				hit = MatchGlob(p.pattern, rest)
			} else if from == len(parts)-1 {
				hit, _ = path.Match(p.pattern, rest)
			}
			if hit {
				return Flag{Path: Escape(name), Kind: p.kind, Why: p.why}, true
			}
		}
	}
	return Flag{}, false
}
