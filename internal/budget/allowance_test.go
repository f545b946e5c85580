package budget

import (
	"encoding/json"
	"testing"
	"time"

	"palyra/internal/fault"
)

func TestAllowance(t *testing.T) {
	a := NewAllowance(Rate{Name: "journal", Each: 100, Period: 100 * time.Second})
	now := time.Unix(1e9, 0)
	ok := func(who Owner, want bool) {
		t.Helper()
		err := a.Check(who, now)
		if (err == nil) != want || err != nil && (fault.ReasonOf(err) != "quota" || fault.KindOf(err) != fault.Unavailable || fault.HintOf(err) == "") {
			t.Errorf("%s: %v, want %v", who.Name, err, want)
		}
	}
	alice, bob, root := Owner{Name: "alice"}, Owner{Name: "bob"}, Owner{Name: "root", Reserve: true}
	ok(alice, true)
	for range 10 {
		a.Spend("alice", 12, now)
		a.Spend("root", 1000, now)
	}
	ok(alice, false) // by 20
	ok(bob, true)
	ok(root, true)
	now = now.Add(20 * time.Second)
	ok(alice, false)
	now = now.Add(time.Second)
	ok(alice, true)

	a.Spend("alice", 1, now) // over a restart
	used, _ := a.Used(now)
	text, err := json.Marshal(used)
	if err != nil {
		t.Fatal(err)
	}
	used = nil
	if err := json.Unmarshal(text, &used); err != nil {
		t.Fatal(err)
	}
	a = NewAllowance(a.rate)
	a.Restore(used)
	ok(alice, false)
	now = now.Add(-time.Hour) // a clock that is set back
	ok(alice, false)
	now = now.Add(30 * time.Second)
	ok(alice, true)
	now = now.Add(time.Hour)
	if used, _ := a.Used(now); used["alice"].Amount != 0 || len(used) != 1 {
		t.Errorf("after an hour: %v", used)
	}
	if a.Refused() != 2 {
		t.Errorf("%d refusals", a.Refused())
	}
}

func BenchmarkSpend(b *testing.B) {
	a, now := NewAllowance(Rate{Name: "journal", Each: 1 << 30, Period: 24 * time.Hour}), time.Now()
	for b.Loop() {
		_ = a.Check(Owner{Name: "uid:1000"}, now)
		a.Spend("uid:1000", 1000, now)
	}
}
