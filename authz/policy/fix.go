package policy

import (
	"fmt"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// fix returns the smallest change that would give exactly this call a better
// effect than d. Additions are tried from small to large and each is evaluated
// together with the set before it is offered; if none helps, a forbid stands in
// the way and the text names it.
func (s *Set) fix(r *Request, d *Decision) string {
	if d.Reason == ReasonPolicyError {
		return ""
	}
	permit := s.permitText(r, cedar.String(r.Action), uid(r.Resource), "")
	additions := []string{permit}
	if kind, family := s.kindOf(r); kind.dangerous() {
		byName := s.permitText(r, interpreterRun, cedar.EntityUID{Type: TypeExecutable, ID: cedar.String(family)}, "_interpreter")
		additions = []string{permit, byName, byName + "\n" + permit}
	}
	for _, text := range additions {
		if got := s.with(r, text); got > d.Effect {
			return text + verdictNote(got)
		}
	}
	return s.changeText(d)
}

func (s *Set) kindOf(r *Request) (Kind, string) {
	if !runsProgram(r.Action) {
		return Other, ""
	}
	return Classify(r.Context.Executable.Path, r.Context.Executable.Interpreter)
}

// permitText is the permit for exactly this call: this principal, action and
// resource and, where the call has one, this capsule.
func (s *Set) permitText(r *Request, action cedar.String, resource cedar.EntityUID, suffix string) string {
	capsule := r.Context.CapsuleDigest
	id := "allow_" + strings.ReplaceAll(r.Action, ".", "_")
	if !capsule.IsZero() {
		id = "allow_" + capsule.Hex()[:12]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "@id(%q)\npermit (\n  principal == %s,\n  action == %s,\n  resource == %s\n)",
		s.freeID(id+suffix), uid(r.Principal), cedar.EntityUID{Type: actionType, ID: action}, resource)
	if !capsule.IsZero() && runsProgram(r.Action) {
		fmt.Fprintf(&b, "\nwhen { context.capsule == %q }", capsule)
	}
	b.WriteString(";\n")
	return b.String()
}

// freeID appends a number if the set has the id already.
func (s *Set) freeID(id string) string {
	free := id
	for n := 2; s.byID[free] != nil; n++ {
		free = fmt.Sprintf("%s_%d", id, n)
	}
	return free
}

// with is the effect that r would have with the policies of text added.
func (s *Set) with(r *Request, text string) Effect {
	list, err := cedar.NewPolicyListFromBytes("fix", []byte(text))
	if err != nil {
		return Deny
	}
	want := s.want
	var extra []*rule
	for _, p := range list {
		x := &rule{id: string(p.Annotations()["id"]), tail: p, reads: mentions((*ast.Policy)(p.AST()))}
		extra = append(extra, x)
		want |= x.reads
	}
	e := s.newEvaluation(r, want)
	e.extra = extra
	e.verdict()
	return e.decision.Effect
}

func verdictNote(got Effect) string {
	if got == NeedsApproval {
		return "// With it the call still needs a person's approval.\n"
	}
	return ""
}

// changeText names the policies that no addition can get past.
func (s *Set) changeText(d *Decision) string {
	var b strings.Builder
	b.WriteString("// No added policy can allow this call")
	if d.Effect == NeedsApproval {
		b.WriteString(" without approval")
	}
	b.WriteString(". In the way:\n")
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

// oneLine keeps an annotation from ending the comment it is quoted in.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 {
			return ' '
		}
		return r
	}, s)
}
