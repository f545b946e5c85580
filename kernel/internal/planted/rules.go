package planted

import (
	"strings"
	"sync"
)

// The kinds of what other programs trust.
const (
	Hook    = "hook"    // run by git, or by what installs itself into git's hooks
	Git     = "git"     // tells git what to run, or whose repository this is
	Shell   = "shell"   // read by a shell that starts or enters the folder
	Editor  = "editor"  // settings and tasks of editors, some run when the folder is opened
	Agent   = "agent"   // tools, permissions and instructions of coding agents
	CI      = "ci"      // run by a build service, with its secrets, when it is pushed
	Package = "package" // read by package managers before anything else: registries, hooks, wrappers
	Tool    = "tool"    // start-up files of other programs that can make them run something
)

// rule names files that a program of the host runs or believes because they lie
// where they lie, without anybody naming them. A path has its place in any
// folder of the workspace. "*" is any one name, "**" at the end everything
// beneath; anything but a folder in the place of one of a rule's folders is that
// rule's, too (a link in the place of .git/hooks). ASCII letters match in
// either case: some file systems do that, and so does git.
//
// The list is the union of what the sandboxes of Claude Code (sandbox-runtime:
// .git/hooks, .git/config, .gitmodules, .gitconfig, shell start-up files,
// .ripgreprc, .mcp.json, .vscode, .idea, .claude), of Codex (.git, .codex,
// .agents) and openmoat (.git/config.worktree, worktrees, modules) deny writing
// to, and what else of that sort was found to be read by itself: direnv, Dev
// Containers, CI, package managers, debuggers. Those deny; here a call whose
// policy lets it write may, and the receipt says so.
//
// Left out: what somebody has to name to run it (Makefile, package.json, build
// files, sources), what can only choose among what is configured elsewhere
// (.gitattributes, .editorconfig), and git's *.sample, which nothing runs.
type rule struct{ kind, paths string }

var rules = []rule{
	{Hook, ".git/hooks/* .husky/** .pre-commit-config.yaml lefthook.yml lefthook.yaml .lefthook.yml .lefthook.yaml"},
	{Git, ".git/config .git/config.worktree .git/commondir .git/objects/info/alternates " +
		".git/worktrees/*/config.worktree .git/worktrees/*/commondir .gitmodules .gitconfig"},
	{Shell, ".envrc .bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout " +
		".kshrc .cshrc .tcshrc .login .config/fish/** mise.toml .mise.toml .config/mise/**"},
	{Editor, ".vscode/** .idea/** .fleet/** .zed/** .vim/** .vimrc .exrc .nvimrc .nvim.lua .dir-locals.el .dir-locals-2.el " +
		".devcontainer/** .devcontainer.json"},
	{CI, ".github/workflows/** .github/actions/** .gitlab-ci.yml .gitlab/ci/** .circleci/** .buildkite/** .woodpecker/** .forgejo/** .gitea/** " +
		".woodpecker.yml .drone.yml .travis.yml .cirrus.yml jenkinsfile azure-pipelines.yml bitbucket-pipelines.yml"},
	{Agent, ".mcp.json .claude/** .codex/** .agents/** .cursor/** .gemini/** .windsurf/** .kiro/** .roo/** .continue/** .cline/** .amazonq/** .opencode/** " +
		".cursorrules .windsurfrules .clinerules opencode.json claude.md claude.local.md agents.md gemini.md .github/copilot-instructions.md"},
	{Package, ".npmrc .pnpmfile.cjs .pnpmfile.mjs .yarnrc .yarnrc.yml .yarn/releases/** .yarn/plugins/** bunfig.toml .cargo/config .cargo/config.toml " +
		".bundle/** .gemrc .condarc .pypirc pip.conf .mvn/** sitecustomize.py"},
	{Tool, ".gdbinit .lldbinit .ripgreprc .curlrc .wgetrc .irbrc .pryrc .rprofile .tmux.conf .screenrc"},
}

// node is a place that rules name.
type node struct {
	kind string           // of the rules that go through here; the first one's
	file bool             // a rule ends here
	deep bool             // everything beneath is a rule's
	kids map[string]*node // by name, in lower case
	any  *node            // "*"
	git  bool             // the hooks of a repository: *.sample are none
}

// tree is what the rules say of any folder, repository what they say of
// one that git takes for a repository's own, whatever its name is.
type ruleSet struct{ tree, repository *node }

// set is the rules, compiled when somebody first looks. It is never changed.
var set = sync.OnceValue(func() ruleSet { return compile(rules) })

func compile(rs []rule) ruleSet {
	top := new(node)
	for _, r := range rs {
		for p := range strings.FieldsSeq(r.paths) {
			at := top
			for e := range strings.SplitSeq(p, "/") {
				if e == "**" {
					at.deep = true
					break
				}
				next := at.any
				if e != "*" {
					next = at.kids[e]
				}
				if next == nil {
					next = &node{kind: r.kind, git: p == ".git/hooks/*"}
					switch {
					case e == "*":
						at.any = next
					case at.kids == nil:
						at.kids = map[string]*node{e: next}
					default:
						at.kids[e] = next
					}
				}
				at = next
			}
			at.file = at.file || !at.deep
		}
	}
	repository := top.kids[".git"]
	repository.kind, repository.kids["hooks"].kind = Git, Hook
	return ruleSet{top, repository}
}

// step returns where a name leads from a place, nil for nowhere that a rule names.
func (n *node) step(name string) *node {
	if n.deep {
		return n
	}
	if next := n.kids[lower(name)]; next != nil {
		return next
	}
	if n.any != nil && !(n.any.git && strings.HasSuffix(lower(name), ".sample")) {
		return n.any
	}
	return nil
}

// folder reports whether the rules go on beneath a place.
func (n *node) folder() bool { return n.deep || n.any != nil || len(n.kids) > 0 }

// lower is strings.ToLower for ASCII, and leaves every other byte alone.
func lower(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			b := []byte(s)
			for ; i < len(b); i++ {
				if 'A' <= b[i] && b[i] <= 'Z' {
					b[i] += 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}

// isRepository reports whether git would take a folder with these names for a
// repository (is_git_directory in git's setup.c, which also reads HEAD): its own
// configuration and hooks count then, without a folder called .git.
func isRepository(names []string) bool {
	const head, objects, refs, common = 1, 2, 4, 8
	have := 0
	for _, n := range names {
		if len(n) > len("commondir") {
			continue
		}
		switch lower(n) {
		case "head":
			have |= head
		case "objects":
			have |= objects
		case "refs":
			have |= refs
		case "commondir":
			have |= common
		}
	}
	return have&(head|objects|refs) == head|objects|refs || have&(head|common) == head|common
}
