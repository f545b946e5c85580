package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/internal/toolproto"
)

// maxFix bounds a fix, in bytes, because people read it. A longer diff gives way to the names
// of the policies in the way.
const maxFix = 16 << 10

// Fix returns the smallest change that would give r, and with it the calls of its shape
// (shapeOf), a better effect. The change is a unified diff against the policy directory. A
// comment in it says how wide it is and gives the condition for this call alone.
//
// Fix tries changes from small to large, each in its place: added permits, then exceptions to
// the forbids in the way, then both. If none helps, the text is a Cedar comment that names the
// policies in the way. It's empty for an allowed request, a bad request, and a policy that
// can't be evaluated.
//
// Fix costs as much as many decisions. The caller charges them to the principal that asks.
func (s *Set) Fix(r Request) (text string) {
	defer func() { // cedar-go's evaluator may panic: see decide
		if recover() != nil {
			text = ""
		}
	}()
	d := s.Repeat(r)
	if d.Effect == Allow || d.Reason == ReasonPolicyError || d.Reason == ReasonBadRequest {
		return ""
	}
	return s.smallest(&r, &d)
}

func (s *Set) smallest(r *Request, d *Decision) string {
	permit := s.permitText(r, cedar.String(r.Action), uid(r.Resource), "")
	additions := []string{permit}
	if kind, family := s.kindOf(r); kind.dangerous() {
		byName := s.permitText(r, interpreterRun, cedar.EntityUID{Type: TypeExecutable, ID: cedar.String(family)}, "_interpreter")
		additions = []string{permit, byName, byName + "\n" + permit}
	}
	if exposed := s.exposeText(r); exposed != "" {
		for _, text := range append([]string{""}, additions...) {
			additions = append(additions, exposed+text)
		}
	}
	for _, text := range additions {
		c, err := addition(text)
		if err != nil {
			return s.changeText(d)
		}
		if got := s.trial(r, c).Effect; got > d.Effect {
			return s.diffOf(r, text+verdictNote(got), nil, d)
		}
	}
	for _, text := range append([]string{""}, additions...) {
		c, err := addition(text)
		if err != nil {
			break
		}
		excepted := s.except(r, c)
		if got := s.trial(r, c).Effect; len(excepted) > 0 && got > d.Effect {
			if text != "" {
				text += verdictNote(got)
			}
			return s.diffOf(r, text, excepted, d)
		}
	}
	return s.changeText(d)
}

// exposeText returns the permits of vault.expose and vault.use for the secrets of the call, "" if
// it has none.
func (s *Set) exposeText(r *Request) (text string) {
	for i, ref := range r.Context.Secrets {
		text += s.permitText(r, vaultExpose, secretUID(ref), fmt.Sprintf("_secret_%d", i+1)) + "\n"
	}
	for i, u := range usesOf(&r.Context) {
		text += s.permitText(r, vaultUse, secretUID(u.ref), fmt.Sprintf("_use_%d", i+1),
			"context.use.host == "+quotedText(u.host), "context.use.methods == "+quotedSet(u.methods), "context.use.path == "+quotedText(u.path)) + "\n"
	}
	return text
}

func addition(text string) (*change, error) {
	c := new(change)
	if text == "" {
		return c, nil
	}
	list, err := cedar.NewPolicyListFromBytes("fix", []byte(text))
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		c.extra = append(c.extra, newExtra(string(p.Annotations()["id"]), (*ast.Policy)(p.AST())))
	}
	return c, nil
}

// exception is a forbid with a clause that excepts some calls.
type exception struct {
	rule   *rule
	clause string // Cedar: unless { … }
}

// except adds to c an exception for every forbid in r's way, with approval and without, and
// returns them.
func (s *Set) except(r *Request, c *change) (out []exception) {
	for range len(s.rules) { // each round finds one more, or ends
		e := s.changed(r, c)
		a := e.answer(false)
		if a.allow || len(a.errors) > 0 {
			return out
		}
		found := false
		for _, id := range a.ids {
			f := s.byID[id]
			if f == nil || f.permits() || ofFloor(f) || slices.Contains(c.without, f) {
				continue
			}
			x, err := s.exceptFrom(r, f)
			if err != nil {
				return nil
			}
			p := *f.ast
			clause := (*ast.Policy)(x.policy.AST()).Conditions
			p.Conditions = append(slices.Clip(slices.Clone(p.Conditions)), clause...)
			c.without = append(c.without, f)
			c.extra = append(c.extra, newExtra(f.id, &p))
			out = append(out, exception{f, x.clause})
			found = true
		}
		if !found {
			return out
		}
	}
	return out
}

type parsedClause struct {
	policy *cedar.Policy
	clause string
}

// exceptFrom returns the clause that excepts r from f, and the calls of r's shape. Without a
// shape it's for this principal and this capsule; without a capsule it's for this principal,
// action and resource.
func (s *Set) exceptFrom(r *Request, f *rule) (parsedClause, error) {
	var parts []string
	capsule := r.Context.CapsuleDigest
	switch {
	case capsule.IsZero() || !runsProgram(r.Action):
		parts = append(parts, "action == "+cedar.EntityUID{Type: actionType, ID: cedar.String(r.Action)}.String())
	case !onlyCalls(f.ast.Action):
		parts = append(parts, "context has capsule") // for other actions the validator stops here
	}
	parts = append(parts, "principal == "+uid(r.Principal).String())
	label := ""
	if !capsule.IsZero() && runsProgram(r.Action) {
		one := fmt.Sprintf("context.capsule == %q", capsule)
		if shape := shapeOf(r); shape != nil {
			label = s.width(r, "unless { "+strings.Join(append(slices.Clone(parts), one), " && ")+" }")
			about := "resource == " + uid(r.Resource).String()
			if len(r.Context.Secrets)+len(r.Context.EgressSecrets) > 0 { // the resource may be one of them
				about = "context.tool == " + string(cedar.String(r.Resource.ID).MarshalCedar())
			}
			parts = append(append(parts, about), shape...)
		} else {
			parts = append(parts, one)
		}
	} else {
		parts = append(parts, "resource == "+uid(r.Resource).String())
	}
	if answers(r.Action) {
		parts = append(append(parts, "context has requester"), sameYes(r)...) // no other action has it
	}
	clause := label + "unless {\n  " + strings.Join(parts, " &&\n  ") + "\n}"
	list, err := cedar.NewPolicyListFromBytes("fix", []byte("permit (principal, action, resource)\n"+clause+";"))
	if err != nil || len(list) != 1 {
		return parsedClause{}, errors.Join(err, errors.New("no clause"))
	}
	return parsedClause{list[0], clause}, nil
}

// onlyCalls reports whether every action of a scope has the context of a call.
func onlyCalls(scope ast.IsScopeNode) bool {
	calls := func(a cedar.EntityUID) bool {
		return runsProgram(string(a.ID)) || a.ID == interpreterRun || a.ID == vaultExpose || a.ID == vaultUse
	}
	switch a := scope.(type) {
	case ast.ScopeTypeEq:
		return calls(a.Entity)
	case ast.ScopeTypeIn:
		return calls(a.Entity)
	case ast.ScopeTypeInSet:
		for _, uid := range a.Entities {
			if !calls(uid) {
				return false
			}
		}
		return true
	}
	return false
}

func (s *Set) kindOf(r *Request) (Kind, string) {
	if !runsProgram(r.Action) {
		return Other, ""
	}
	return Classify(r.Context.Executable.Path, r.Context.Executable.Interpreter)
}

// permitText returns the permit for this call: this principal, action and resource and, if the
// call has them, its shape or else its capsule. Policies see no capsule of a yes, so that
// permit is for the same program, tool, requester and scope. more are conditions that a shape gets.
func (s *Set) permitText(r *Request, action cedar.String, resource cedar.EntityUID, suffix string, more ...string) string {
	capsule := r.Context.CapsuleDigest
	var b strings.Builder
	fmt.Fprintf(&b, "@id(%q)\npermit (\n  principal == %s,\n  action == %s,\n  resource == %s\n)",
		s.freeID(fixID(r)+suffix), uid(r.Principal), cedar.EntityUID{Type: actionType, ID: action}, resource)
	if !capsule.IsZero() && runsProgram(r.Action) {
		one := fmt.Sprintf("when { context.capsule == %q }", capsule)
		if shape := shapeOf(r); shape != nil {
			if action == vaultExpose || action == vaultUse {
				shape = append([]string{"context.tool == " + quotedText(r.Resource.ID)}, shape...)
			}
			shape = append(shape, more...)
			b.WriteString("\n" + s.width(r, one) + "when {\n  " + strings.Join(shape, " &&\n  ") + "\n}")
		} else {
			b.WriteString("\n" + one)
		}
	}
	if answers(r.Action) {
		fmt.Fprintf(&b, "\nwhen { %s }", strings.Join(sameYes(r), " && "))
	}
	b.WriteString(";\n")
	return b.String()
}

// shapeOf returns the conditions, as Cedar, that a person would write to let calls like r
// through:
//
//   - for process.run, the program's path, its digest unless it's the system's, the name that
//     it's called by if that differs, and the subcommand if its first argument looks like one;
//   - for another tool, that it writes no place that other programs run or obey;
//   - for both, the tier, the workspace, the network, the capabilities, and an environment
//     that is every call's.
//
// It returns nil if r itself writes such a place, has another environment, or runs a program
// unknown to policy. It gives no values of variables: the record of the denial keeps only their
// names.
func shapeOf(r *Request) []string {
	c := &r.Context
	if len(c.envNames()) > 0 {
		return nil
	}
	quoted := quotedText
	var parts []string
	if namesProgram(r) {
		if c.Executable.Path == "" {
			return nil
		}
		parts = append(parts, "context.executable.path == "+quoted(c.Executable.Path))
		if !c.Executable.System {
			parts = append(parts, fmt.Sprintf("context.executable.digest == %q", c.Executable.Digest))
		}
		if c.Argv0 != "" && baseName(c.Argv0) != baseName(c.Executable.Path) { // some programs are several
			parts = append(parts, "context.argv0 == "+quoted(c.Argv0))
		}
		if sub := subcommand(c.Args); sub != "" {
			parts = append(parts, "context.first_arg == "+quoted(sub))
		}
	} else {
		var flags []string
		for _, kind := range append(toolproto.PlaceKinds(), toolproto.KindExecutable) {
			flags = append(flags, `"flag=`+kind+`"`)
		}
		if slices.ContainsFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "flag=") }) {
			return nil
		}
		parts = append(parts, "!context.args.containsAny(["+strings.Join(flags, ", ")+"])")
	}
	if c.Tier != "" {
		parts = append(parts, "context.tier == "+quoted(c.Tier))
	}
	parts = append(parts, "context.workspace.source == "+quoted(c.WorkspaceSource))
	if c.WorkspaceSource != "" {
		parts = append(parts, fmt.Sprintf("context.workspace.read_only == %v", c.WorkspaceReadOnly))
		if c.WorkspaceStaged {
			parts = append(parts, "context.workspace.staged")
		}
	}
	set := func(name string, values []string) {
		if len(values) == 0 {
			parts = append(parts, "context."+name+".isEmpty()")
			return
		}
		parts = append(parts, "context."+name+" == "+quotedSet(values))
	}
	parts = append(parts, "context.network == "+quoted(cmp.Or(c.Network, NetworkFresh)))
	if c.TTY {
		parts = append(parts, "context.tty")
	}
	set("mounts", c.Mounts)
	set("caches", c.Caches)
	set("egress_hosts", bareHosts(c.EgressHosts))
	if len(c.EgressInspect) > 0 {
		set("egress_inspect", c.EgressInspect)
	}
	if len(c.EgressSecrets) > 0 {
		set("egress_secrets", c.EgressSecrets)
	}
	if len(c.Secrets) > 0 { // the capabilities say that there are none
		set("secrets", c.Secrets)
	}
	set("capabilities", c.Capabilities)
	set("env_names", nil)
	return parts
}

func quotedText(v string) string { return string(cedar.String(v).MarshalCedar()) }

// quotedSet is a set of texts, each once, in order.
func quotedSet(values []string) string {
	var list []string
	for _, v := range slices.Compact(slices.Sorted(slices.Values(values))) {
		list = append(list, quotedText(v))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

// namesProgram reports whether the caller names the program to run. The kernel's other tools
// run one of ours.
func namesProgram(r *Request) bool {
	return r.Action == SkillExecute || r.Resource.ID == "process.run"
}

// subcommand returns the first argument if it looks like a subcommand: "status" of git. A file
// may have such a name; then the rule is narrower than it need be.
func subcommand(args []string) string {
	if len(args) == 0 || len(args[0]) > 32 || strings.Trim(args[0], "abcdefghijklmnopqrstuvwxyz-") != "" || strings.HasPrefix(args[0], "-") {
		return ""
	}
	return args[0]
}

// width returns the comment above a condition: the calls that it is for, and the condition for
// this call alone.
func (s *Set) width(r *Request, one string) string {
	c := &r.Context
	var b strings.Builder
	what := "every " + oneLine(r.Resource.ID) + " that writes nothing other programs run or obey"
	if namesProgram(r) {
		what = "every call of " + oneLine(c.Executable.Path)
		if sub := subcommand(c.Args); sub != "" {
			what += " " + sub
		}
		what += ", whatever its other arguments"
		if kind, family := s.kindOf(r); kind.dangerous() {
			what += ", so whatever " + oneLine(family) + " is told to do"
		}
	}
	where := "without a workspace"
	switch {
	case c.WorkspaceSource != "" && c.WorkspaceReadOnly:
		where = "reading " + oneLine(c.WorkspaceSource)
	case c.WorkspaceSource != "" && c.WorkspaceStaged:
		where = "staging " + oneLine(c.WorkspaceSource)
	case c.WorkspaceSource != "":
		where = "writing " + oneLine(c.WorkspaceSource)
	}
	fmt.Fprintf(&b, "// Width: %s, by %s, %s", what, oneLine(r.Principal.ID), where)
	if c.Tier != "" {
		fmt.Fprintf(&b, ", at tier %s", c.Tier)
	}
	fmt.Fprintf(&b, ".\n// For this call alone: %s\n", one)
	if s.builtIn() {
		b.WriteString("// The built-in set decided. Write it out first: palyra policy init DIR\n")
	}
	return b.String()
}

// builtIn reports whether s is the program's own set, with or without its floor.
func (s *Set) builtIn() bool { return s.directory() == Default() }

func sameYes(r *Request) (parts []string) {
	c := r.Context
	for _, p := range []struct{ name, value string }{{"tool", c.Answer.Tool}, {"requester", c.Answer.Requester},
		{"scope", cmp.Or(c.Answer.Scope, ScopeOnce)}, {"executable.path", c.Executable.Path}, {"executable.digest", c.Executable.Digest.String()}} {
		parts = append(parts, fmt.Sprintf("context.%s == %s", p.name, cedar.String(p.value).MarshalCedar()))
	}
	return parts
}

func fixID(r *Request) string {
	if c := r.Context.CapsuleDigest; !c.IsZero() {
		return "allow_" + c.Hex()[:12]
	}
	return "allow_" + strings.ReplaceAll(r.Action, ".", "_")
}

// freeID appends a number if the set has the id already.
func (s *Set) freeID(id string) string {
	free := id
	for n := 2; s.byID[free] != nil; n++ {
		free = fmt.Sprintf("%s_%d", id, n)
	}
	return free
}

func verdictNote(got Effect) string {
	if got == NeedsApproval {
		return "// With it the call still needs a person's approval.\n"
	}
	return ""
}

// diffOf returns a change as a unified diff: exceptions in their files, sorted by name, then a
// new file for the additions.
func (s *Set) diffOf(r *Request, text string, excepted []exception, d *Decision) string {
	edits := make(map[string][]edit)
	for _, x := range excepted {
		f := s.text(x.rule.file)
		at := endOfPolicy(f, x.rule.policy.Position().Offset)
		if at < 0 {
			return s.changeText(d)
		}
		edits[x.rule.file] = append(edits[x.rule.file], edit{at, "\n" + x.clause})
	}
	var b strings.Builder
	for _, f := range s.texts {
		if e := edits[f.name]; len(e) > 0 {
			b.WriteString(insertions(f.name, f.data, e))
		}
	}
	if text != "" {
		b.WriteString(newFile(s.freeFile("90-"+s.freeID(fixID(r))), text))
	}
	if b.Len() > maxFix {
		return s.changeText(d)
	}
	return b.String()
}

func (s *Set) text(name string) []byte {
	for _, f := range s.texts {
		if f.name == name {
			return f.data
		}
	}
	return nil
}

func (s *Set) freeFile(base string) string {
	free := base + ".cedar"
	for n := 2; s.text(free) != nil; n++ {
		free = fmt.Sprintf("%s_%d.cedar", base, n)
	}
	return free
}

// changeText names the policies in the way of a call if no change was found, or none that can
// be shown.
func (s *Set) changeText(d *Decision) string {
	var b strings.Builder
	b.WriteString("// No change for this call alone can be shown. In its way:\n")
	for _, id := range d.Policies {
		r := s.byID[id]
		if r == nil {
			continue
		}
		fmt.Fprintf(&b, "//   %q at %s:%d", id, r.file, r.line)
		if r.reason != "" {
			fmt.Fprintf(&b, " (%s)", oneLine(r.reason))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// oneLine keeps an annotation from ending the comment that quotes it.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, s)
}
