package toolproto

import (
	"path"
	"slices"
	"strings"
	"sync"
)

// The kinds of places.
const (
	PlaceHook   = "hook"   // run by git, or by what installs itself into git's hooks
	PlaceGit    = "git"    // tells git what to run, or whose repository this is
	PlaceHg     = "hg"     // the same of mercurial
	PlaceShell  = "shell"  // read by a shell that starts or enters the folder
	PlaceEditor = "editor" // settings and tasks of editors, some run when the folder is opened
	PlaceAgent  = "agent"  // tools, permissions and instructions of coding agents
	PlaceCI     = "ci"     // run by a build service, with its secrets, when it is pushed
	// PlacePackage: package managers read it before anything else: registries, hooks,
	// wrappers.
	PlacePackage = "package"
	PlaceTool    = "tool"  // start-up files of other programs that can make them run something
	PlaceBuild   = "build" // run when a user builds, tests or installs the project
)

// Place names files that a program of the host runs or believes because of their place.
// Writing there isn't refused, since some calls are made for it. Approvers of a tool's call
// that writes there are told, and the receipt of a call lists the files that it left there.
type Place struct {
	Kind string

	// Paths, separated by spaces, each in any folder of the workspace: a "*" in a name is any
	// text without a slash, "**" at the end everything beneath. ASCII
	// letters match in either case: some file systems do that, and so does git.
	Paths string

	Why string // for whoever approves

	// Asked: a user has to build, or to configure more, before such a file does anything,
	// or git itself writes there all the time. The tool's card names it, since there every
	// path is meant; a receipt that listed it would list the purpose of the call.
	Asked bool
}

// places is the union of what the sandboxes of Claude Code (sandbox-runtime: .git/hooks,
// .git/config, .gitmodules, .gitconfig, shell start-up files, .ripgreprc, .mcp.json,
// .vscode, .idea, .claude), of Codex (.git, .codex, .agents) and openmoat
// (.git/config.worktree, worktrees, modules) deny writing to, and of other files that
// programs were found to read by themselves: direnv, Dev Containers, CI, package managers,
// debuggers.
//
// Left out are files that can only choose among things configured elsewhere
// (.editorconfig). The first place that matches a path counts.
var places = [...]Place{
	{Kind: PlaceHook, Why: "git runs it, or what it names, as a hook",
		Paths: ".git/hooks/* .husky/** .pre-commit-config.yaml prek.toml .overcommit.yml .lintstagedrc .lintstagedrc.* lint-staged.config.* " +
			"lefthook.* .lefthook.* lefthook-local.* .lefthook-local.* .config/lefthook.* .lefthook/** .lefthook-local/**"},
	{Kind: PlaceGit, Why: "it decides what git runs, and whose repository this is",
		Paths: ".git/config .git/config.worktree .git/commondir .git/objects/info/alternates " +
			".git/worktrees/*/config.worktree .git/worktrees/*/commondir .gitmodules .gitconfig"},
	{Kind: PlaceHg, Why: "it decides what mercurial, sapling or jujutsu runs",
		Paths: ".hg/hgrc .hg/hgrc-not-shared .hg/sharedpath .sl/config .sl/sharedpath .jj/repo/config.toml"},
	{Kind: PlaceShell, Why: "a shell, or what watches a shell enter the folder, runs it",
		Paths: ".envrc .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout " +
			".kshrc .cshrc .tcshrc .login .direnv/** .autoenv.zsh .config/fish/** " +
			"mise.toml mise.*.toml .mise.toml .mise.*.toml mise/config.toml .mise/config.toml .config/mise.toml .config/mise/**"},
	{Kind: PlaceEditor, Why: "the editor runs tasks and tools that it names",
		Paths: ".vscode/** .idea/** .fleet/** .zed/** .vim/** .vimrc .exrc .nvimrc .nvim.lua .dir-locals.el .dir-locals-2.el " +
			".devcontainer/** .devcontainer.json .gitpod.yml .idx/** .replit *.code-workspace .helix/** .nvim/** .lvimrc .local.vimrc .theia/** " +
			"rust-analyzer.toml .rust-analyzer.toml"},
	{Kind: PlaceCI, Why: "a build server runs it",
		Paths: ".github/workflows/** .github/actions/** .gitlab-ci.yml .gitlab/ci/** .circleci/** .buildkite/** .woodpecker/** .forgejo/** .gitea/** " +
			".woodpecker.yml .woodpecker.yaml .drone.yml .drone.yaml .travis.yml .cirrus.yml .cirrus.star jenkinsfile azure-pipelines.yml azure-pipelines.yaml " +
			".azure-pipelines/** bitbucket-pipelines.yml appveyor.yml .appveyor.yml buildspec.yml buildspec.yaml cloudbuild.yaml cloudbuild.json .semaphore/** .teamcity/** " +
			".tekton/** .builds/** .build.yml .readthedocs.yml .readthedocs.yaml netlify.toml vercel.json .taskcluster.yml zuul.yaml .zuul.yaml zuul.d/** .zuul.d/**"},
	{Kind: PlaceAgent, Why: "an agent obeys it, or starts what it names",
		Paths: ".mcp.json .mcp.json.before-palyra .claude/** .codex/** .agents/** .cursor/** .gemini/** .windsurf/** .kiro/** .roo/** .continue/** .cline/** .amazonq/** .opencode/** " +
			".cursorrules .windsurfrules .clinerules .clinerules/** .roorules .roomodes .kilocode/** .augment/** .factory/** .junie/** .trae/** .qwen/** .crush/** .openhands/** " +
			".goosehints .aider.conf.yml .claude-plugin/** opencode.json opencode.jsonc crush.json .crush.json agents.override.md crush.md qwen.md " +
			".github/hooks/** .github/instructions/** .github/prompts/** .github/agents/** .github/skills/** .github/copilot/** .github/mcp.json claude.md claude.local.md agents.md gemini.md .github/copilot-instructions.md"},
	{Kind: PlacePackage, Why: "it decides what a package manager fetches and runs",
		Paths: ".npmrc .pnpmfile.cjs .pnpmfile.mjs .yarnrc .yarnrc.yml .yarn/releases/** .yarn/plugins/** bunfig.toml .cargo/config .cargo/config.toml " +
			".bundle/** .gemrc .condarc .pypirc pip.conf pip.ini uv.toml pnpm-workspace.yaml .mvn/** gradle/wrapper/** .bazelrc .bazeliskrc tools/bazel nuget.config .config/dotnet-tools.json " +
			".jvmopts .sbtopts .terraformrc sitecustomize.py usercustomize.py"},
	{Kind: PlaceTool, Why: "a program reads it when it starts, and runs what it says",
		Paths: ".gdbinit .lldbinit .ripgreprc .curlrc .wgetrc .irbrc .pryrc .rprofile .tmux.conf .screenrc " +
			".pdbrc .ghci .ocamlinit .iex.exs .octaverc rust-toolchain rust-toolchain.toml " +
			".gdbearlyinit .valgrindrc .latexmkrc latexmkrc .erlang .renviron .pylintrc pylintrc ansible.cfg"},
	{Kind: PlaceGit, Why: "git's own files decide what git runs", Paths: ".git .git/** .gitattributes", Asked: true},
	{Kind: PlaceGit, Why: "with it git may take the folder for a repository, whose configuration and hooks it obeys", Paths: "head", Asked: true},
	{Kind: PlaceHook, Why: "git runs it if core.hooksPath says so", Paths: ".githooks/**", Asked: true},
	{Kind: PlaceHg, Why: "mercurial's own files decide what it runs", Paths: ".hg/**", Asked: true},
	{Kind: PlaceShell, Why: "it decides who may log in and what runs then", Paths: ".ssh/**", Asked: true},
	{Kind: PlaceBuild, Why: "it is run by whoever builds, tests or installs this", Asked: true,
		Paths: "makefile gnumakefile package.json setup.py conftest.py build.rs *.pth"},
}

// Places returns the list. It cannot be complete.
func Places() []Place { return slices.Clone(places[:]) }

// Planted returns the flag for a written path, unescaped, and whether there is
// one.
func Planted(name string) (Flag, bool) {
	return flagOf(name, func(p *Place, pattern string, parts []string) bool { return p.matches(pattern, parts) })
}

// PlantedNode is Planted for whatever a program left at a path. Anything but a folder in the
// place of a folder that leads to one of the places is that place's, too: a link instead of
// .vscode, say.
func PlantedNode(name string, folder bool) (Flag, bool) {
	if f, ok := Planted(name); ok || folder {
		return f, ok
	}
	return flagOf(name, func(p *Place, pattern string, parts []string) bool {
		if p.Asked || len(parts) > strings.Count(pattern, "/") {
			return false
		}
		return p.matches(strings.Join(strings.Split(pattern, "/")[:len(parts)], "/"), parts)
	})
}

// PlantedRepository is PlantedNode for a name in a folder that git takes for a repository
// ([IsRepository]), with the name relative to it: its configuration and its hooks.
func PlantedRepository(name string) (Flag, bool) {
	if elements(name, repositoryDepth+1) {
		return Flag{}, false
	}
	return flagOf(".git/"+name, func(p *Place, pattern string, parts []string) bool {
		return !p.Asked && parts[0] == ".git" && p.matches(pattern, parts)
	})
}

// repositoryDepth is how many elements the longest name has that PlantedRepository can flag.
const repositoryDepth = 3

// elements reports whether a path has at least n elements.
func elements(name string, n int) bool {
	for ; n > 1; n-- {
		i := strings.IndexByte(name, '/')
		if i < 0 {
			return false
		}
		name = name[i+1:]
	}
	return true
}

// pattern is one of a place's paths.
type pattern struct {
	at    int // in the list of all
	place *Place
	text  string
}

// patterns are those of all places, by their first element where that is a name.
type patterns struct {
	named map[string][]pattern
	globs []pattern
}

// all is compiled when a path is first looked up. It is never changed.
var all = sync.OnceValue(func() patterns {
	out := patterns{named: make(map[string][]pattern)}
	n := 0
	for i := range places {
		for text := range strings.FieldsSeq(places[i].Paths) {
			p := pattern{n, &places[i], text}
			n++
			if first, _, _ := strings.Cut(text, "/"); strings.Contains(first, "*") {
				out.globs = append(out.globs, p)
			} else {
				out.named[first] = append(out.named[first], p)
			}
		}
	}
	return out
})

func flagOf(name string, hit func(p *Place, pattern string, parts []string) bool) (Flag, bool) {
	parts := strings.Split(strings.ToLower(name), "/")
	var first *pattern
	for from := range parts {
		for _, list := range [][]pattern{all().named[parts[from]], all().globs} {
			for i := range list {
				if p := &list[i]; (first == nil || p.at < first.at) && hit(p.place, p.text, parts[from:]) {
					first = p
				}
			}
		}
	}
	if first == nil {
		return Flag{}, false
	}
	return Flag{Path: Escape(name), Kind: first.place.Kind, Why: first.place.Why}, true
}

func (p *Place) matches(pattern string, parts []string) bool {
	// A name can have very many elements: the first one decides for nearly all of them.
	first, _, nested := strings.Cut(pattern, "/")
	if hit, _ := path.Match(first, parts[0]); !hit || !nested {
		return hit && len(parts) == 1
	}
	if strings.HasSuffix(pattern, "/**") {
		pattern += "/*"
	} else if strings.Count(pattern, "/")+1 != len(parts) {
		return false
	}
	return MatchGlob(pattern, strings.Join(parts, "/"))
}

// PlaceKinds returns the kinds of places, sorted.
func PlaceKinds() []string {
	var out []string
	for i := range places {
		out = append(out, places[i].Kind)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
