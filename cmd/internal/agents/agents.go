// Package agents is the table of the agents that palyra run starts: one row for each, with all that
// palyra knows of it. It's data about programs that aren't ours, as their makers document them and
// as they were seen to behave (conformance/agents); a user overrides hosts, keys and arguments by
// flags.
package agents

import (
	"encoding/json"
	"slices"
	"strings"
)

// Agent is a row. In Args, Env, Elsewhere and the texts of Files these words stand for what a run
// has:
//
//	{url}   the model's address, "https://api.example"
//	{key}   Key
//	{home}  HOME as the agent sees it
//	{dir}   the workspace as the agent sees it, in the quotes of JSON or TOML
type Agent struct {
	Name    string // of its program, as people type it
	Title   string // for documents
	Version string // that was tried
	Package string // of npm that has it
	Natives []string

	Host   string   // of its model: "HOST:PORT"
	Key    string   // variable of the environment with the placeholder
	Places []string // where in its requests the key stands, as palyra exec --egress-secret spells it
	Form   string   // the placeholder's beginning
	Secret string   // the key's usual reference

	Args      []string // before those of the user, who may override them
	Env       []string // "NAME=VALUE"
	Elsewhere []string // of Env, if the model isn't at Host
	Files     []File   // of HOME
}

// File is one that HOME gets if it has none of the name. The agent and the person change it from
// then on.
type File struct{ Path, Text string }

// All are the agents.
//
// Natives are where a package of npm has the binary that its script starts, as seen from the
// script's folder: palyra run names that itself, so that what was approved is the agent and not a
// script that looks for it.
//
// The cell is the sandbox, and the layer what is asked about: the agents' own sandboxes, which
// can't be made in a cell, and their own questions are off. Their makers want that said for an
// environment that is confined from outside. A shell that the agent starts doesn't get the key's
// placeholder: printing it would end the call.
var All = []Agent{
	{
		Name: "claude", Title: "Claude Code", Version: "2.1.330", Package: "@anthropic-ai/claude-code",
		Natives: []string{"../../claude-code-linux-*/claude", "../node_modules/@anthropic-ai/claude-code-linux-*/claude"},
		Host:    "api.anthropic.com:443", Key: "PALYRA_MODEL_KEY", Form: "sk-ant-api03-", Secret: "vault://global/anthropic",
		// It asks about each new key in ANTHROPIC_API_KEY, and a placeholder is new each time. What a
		// helper prints it takes without a question, and sends in both places.
		Places: []string{"header:x-api-key", "header:authorization"},
		Args:   []string{"--settings", `{"apiKeyHelper":"printenv {key}","skipDangerousModePermissionPrompt":true}`, "--permission-mode", "bypassPermissions"},
		Env: []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "IS_SANDBOX=1",
			"CLAUDE_ENV_FILE={home}/.claude/palyra-shell"},
		Elsewhere: []string{"ANTHROPIC_BASE_URL={url}"},
		Files: []File{
			{".claude/palyra-shell", "unset {key}\n"},
			{".claude.json", `{"hasCompletedOnboarding":true,"theme":"dark","projects":{"{dir}":{"hasTrustDialogAccepted":true,"hasCompletedProjectOnboarding":true}}}` + "\n"},
		},
	},
	{
		Name: "codex", Title: "Codex", Version: "0.169.0", Package: "@openai/codex",
		Natives: []string{"../../codex-linux-*/vendor/*/bin/codex", "../node_modules/@openai/codex-linux-*/vendor/*/bin/codex"},
		Host:    "api.openai.com:443", Key: "OPENAI_API_KEY", Places: []string{"header:authorization"}, Form: "sk-", Secret: "vault://global/openai",
		// A provider of its own asks for no login, and uses no WebSockets, which inspected connections
		// have only by a rule.
		Args: []string{"-c", "model_provider=palyra",
			"-c", `model_providers.palyra={name="OpenAI",base_url="{url}/v1",env_key="{key}",wire_api="responses",supports_websockets=false}`,
			"-c", "sandbox_mode=danger-full-access", "-c", "approval_policy=never",
			"-c", `projects={"{dir}"={trust_level="trusted"}}`,
			"-c", `shell_environment_policy.exclude=["{key}"]`,
			"-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false"},
	},
}

// Names are those of All, with bars between.
func Names() string {
	var names []string
	for _, a := range All {
		names = append(names, a.Name)
	}
	return strings.Join(names, "|")
}

// Find returns the row of a program's name.
func Find(name string) (Agent, bool) {
	i := slices.IndexFunc(All, func(a Agent) bool { return a.Name == name })
	if i < 0 {
		return Agent{}, false
	}
	return All[i], true
}

// Filled returns a with the words of its texts replaced: url is the model's address, home and dir
// are paths as the agent sees them. elsewhere says that the model isn't at the usual host.
func (a Agent) Filled(url, home, dir string, elsewhere bool) Agent {
	if b, err := json.Marshal(dir); err == nil { // a string always is
		dir = string(b[1 : len(b)-1])
	}
	fill := strings.NewReplacer("{url}", url, "{key}", a.Key, "{home}", home, "{dir}", dir).Replace
	all := func(in []string) (out []string) {
		for _, s := range in {
			out = append(out, fill(s))
		}
		return out
	}
	if elsewhere {
		a.Env = slices.Concat(a.Env, a.Elsewhere)
	}
	a.Args, a.Env, a.Files = all(a.Args), all(a.Env), slices.Clone(a.Files)
	for i := range a.Files {
		a.Files[i].Text = fill(a.Files[i].Text)
	}
	return a
}
