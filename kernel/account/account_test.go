package account

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"palyra/call"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/isolate/evidence"
)

// unshown are the fields of a statement that attest show leaves out: they say how the
// others are written, or only number them.
var unshown = map[string]bool{
	"Version": true, "Seq": true, "Intent": true, "BootID": true, // of the record
	"Capsule.Bytes": true, "Capsule.Executable.Size": true, "Capsule.Script.Size": true, "Capsule.Loader.Size": true, "Capsule.Operands.Size": true, "Capsule.Stdin.Size": true,
	"Question.System":  true,                             // pinned says so of each file
	"Approval.Capsule": true, "Approval.PolicySet": true, // a receipt with others doesn't verify
	// It is one of Approvers, if there are any; see TestApprovalRows.
	"Approval.Approver": true, "Approval.Signed": true,
	"Decision.Fix": true,                  // palyra policy why
	"Evidence":     true, "Planted": true, // rows of their own
}

// TestEveryFieldIsShown: attest show prints every field of a statement that isn't in
// unshown.
func TestEveryFieldIsShown(t *testing.T) {
	s := receipt.Statement{PredicateType: receipt.ResultType}
	marks := make(map[string]string) // by field
	n := 0
	var fill func(v reflect.Value, name string)
	fill = func(v reflect.Value, name string) {
		if unshown[name] {
			return
		}
		n++
		switch x := v.Addr().Interface().(type) {
		case *canon.Digest:
			*x = canon.Sum([]byte(name))
			marks[name] = x.Hex()
			return
		case *bool:
			*x, marks[name] = true, map[string]string{"Capsule.Workspace.ReadOnly": "read-only", "Capsule.Workspace.Staged": ", staged", "Capsule.Workspace.OwnPath": "at its own path", "Capsule.Sensitive": "sensitive", "Capsule.Background": "no caller waited"}[name]
			return
		case *int64:
			*x, marks[name] = int64(n)*1e9, fmt.Sprint(int64(n)*1e9)
			return
		case *time.Duration:
			*x, marks[name] = time.Duration(n%50+2)*time.Second, fmt.Sprintf("%ds", n%50+2)
			return
		}
		switch v.Kind() {
		case reflect.String:
			v.SetString(fmt.Sprintf("mark-%d-", n))
			marks[name] = v.String()
		case reflect.Uint32, reflect.Uint64:
			v.SetUint(uint64(1e6 + n))
			marks[name] = fmt.Sprint(1000000 + n)
		case reflect.Uint16:
			v.SetUint(uint64(4e4 + n))
			marks[name] = fmt.Sprint(40000 + n)
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), name)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), name)
		case reflect.Struct:
			for i := range v.NumField() {
				fill(v.Field(i), strings.TrimPrefix(name+"."+v.Type().Field(i).Name, "."))
			}
		default:
			t.Fatalf("%s is a %v", name, v.Type())
		}
	}
	fill(reflect.ValueOf(&s.Predicate).Elem(), "")
	got := Of(&s).String()
	for name, mark := range marks {
		if mark == "" || !strings.Contains(got, mark) {
			t.Errorf("%s is not shown: %q", name, mark)
		}
	}
	if len(marks) < 50 {
		t.Errorf("%d fields were looked for", len(marks))
	}
	if t.Failed() {
		t.Log(got)
	}
}

// TestPathsAreQuoted: no name of a file looks like a digest or like another name.
func TestPathsAreQuoted(t *testing.T) {
	show := func(name string) string {
		var s receipt.Statement
		f := receipt.File{Path: name, Digest: canon.Sum(nil), Pinned: "sealed"}
		s.Predicate.Capsule.Executable, s.Predicate.Capsule.Script, s.Predicate.Capsule.Loader = f, &f, &f
		s.Predicate.Capsule.Operands, s.Predicate.Capsule.Cwd = []receipt.File{f}, name
		s.Predicate.Capsule.Workspace = &receipt.Workspace{Source: name}
		s.Predicate.Planted = &receipt.Planted{Found: []receipt.Finding{{Kind: "hook", Path: name, Target: name}}}
		return Of(&s).String()
	}
	if a, b := show("g\nh"), show(`g\nh`); a == b {
		t.Errorf("two names, one text:\n%s", a)
	}
	name := "f " + canon.Sum([]byte("x")).String()
	if text := show(name); strings.Count(text, name) != 8 || strings.Count(text, `"`+name+`"`) != 8 {
		t.Errorf("not in quotes, or not shown:\n%s", text)
	}
}

// TestApprovalRows: a yes names all who gave it, and says if it stands for calls that no
// one looked at.
func TestApprovalRows(t *testing.T) {
	for want, a := range map[string]receipt.Approval{
		"approved by uid:0 on unix, scope once,":          {Answer: "approved", Approver: "uid:0", Surface: "unix", Scope: "once"},
		"approved by uid:1, uid:2 on unix, scope once,":   {Answer: "approved", Approver: "uid:2", Approvers: []string{"uid:1", "uid:2"}, Surface: "unix", Scope: "once"},
		"standing grant grt_1: no person may have looked": {Answer: "approved", Approver: "uid:0", Surface: "unix", Scope: "timed", Grant: "grt_1"},
		"signed by uid:0 with the passkey psk_1 at http://localhost:7142": {Answer: "approved", Approver: "uid:0", Surface: "console", Scope: "once",
			Signed: []*call.SignedYes{{Passkey: "psk_1", Statement: call.Yes{Approver: "uid:0", Origin: "http://localhost:7142"}}}},
	} {
		var r Rows
		r.Approval(&a)
		if got := r.String(); !strings.Contains(got, want) || strings.Contains(got, "grant") != (a.Grant != "") {
			t.Errorf("lacks %q:\n%s", want, got)
		}
	}
}

// TestReadersAreShown: the readers of a script are shown down to the binary, not the script
// alone.
func TestReadersAreShown(t *testing.T) {
	b, err := json.Marshal(evidence.Evidence{Scripts: []evidence.Executable{{Path: "/w/first"}, {Path: "/w/second x", Digest: canon.Sum(nil), Pinned: "sealed"}}})
	if err != nil {
		t.Fatal(err)
	}
	var s receipt.Statement
	s.Predicate.Evidence = b
	if got := Of(&s).String(); !strings.Contains(got, `read by    "/w/second x" `+canon.Sum(nil).String()+" (sealed)") || strings.Contains(got, "/w/first") {
		t.Errorf("%s", got)
	}
}
