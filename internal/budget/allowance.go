package budget

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"palyra/internal/fault"
)

// Allowance is the account of what owners use up for good: bytes of a log that is never
// trimmed. Each owner may use Each in any Period, on average: the account forgets its use
// evenly, Each in a Period.
//
//	written := budget.NewAllowance(budget.Rate{Name: "journal", Each: 1 << 30, Period: 24 * time.Hour})
//	if err := written.Check(owner, now); err != nil {
//		return err // fault.Unavailable "quota"
//	}
//	n := write()
//	written.Spend(owner.Name, n, now)
//
// Owners pay afterwards, since only then is the amount known, so an owner can exceed its
// allowance by the work that it has begun. [Allowance.Used] and [Allowance.Restore] carry
// the account over a restart. A time before the last one counts as that one: setting a
// clock back returns nothing sooner and stops nothing.
type Allowance struct {
	rate Rate

	mu      sync.Mutex
	used    map[string]Use // guarded by mu; amounts above 0
	changes uint64         // guarded by mu
	refused uint64         // guarded by mu
}

// Rate bounds the use of one resource by each owner. With Each 0 use is only counted.
type Rate struct {
	Name   string // of the resource, snake_case; errors' texts name it
	Each   int64
	Period time.Duration
}

// Use is an owner's use at a time. It serialises.
type Use struct {
	Amount float64   `json:"amount"`
	At     time.Time `json:"at"`
}

// NewAllowance returns an unused Allowance.
func NewAllowance(r Rate) *Allowance {
	if r.Name == "" || r.Each < 0 || r.Period <= 0 {
		panic(fmt.Sprintf("budget: internal error: rate %+v", r))
	}
	return &Allowance{rate: r, used: make(map[string]Use)}
}

// Check returns fault.Unavailable "quota" if o has used up its allowance. An Owner
// with Reserve always passes.
func (a *Allowance) Check(o Owner, now time.Time) error {
	if o.Reserve || a.rate.Each == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.atLocked(o.Name, now)
	over := u.Amount - float64(a.rate.Each)
	if over < 0 {
		return nil
	}
	a.used[o.Name] = u
	a.refused++
	wait := time.Duration((over + 1) / float64(a.rate.Each) * float64(a.rate.Period)).Round(time.Second)
	return fault.New(fault.Unavailable, "quota", "use "+a.rate.Name,
		errors.New("this caller has used up what it may")).WithHint(fmt.Sprintf("there is room again in %v; an administrator can raise the quota", max(wait, time.Second)))
}

// Spend notes that an owner has used n.
func (a *Allowance) Spend(owner string, n int64, now time.Time) {
	if n <= 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.atLocked(owner, now)
	u.Amount += float64(n)
	a.used[owner] = u
	a.changes++
}

// Used returns the use of each owner, and a number that changes with each Spend.
func (a *Allowance) Used(now time.Time) (map[string]Use, uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.used {
		if u := a.atLocked(name, now); u.Amount > 0 {
			a.used[name] = u
		} else {
			delete(a.used, name)
		}
	}
	return maps.Clone(a.used), a.changes
}

// Restore puts back the result of an earlier process's Used.
func (a *Allowance) Restore(used map[string]Use) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.Copy(a.used, used)
}

// Refused returns how often Check refused an owner.
func (a *Allowance) Refused() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused
}

// atLocked returns an owner's use, less the part that is forgotten by now.
func (a *Allowance) atLocked(owner string, now time.Time) Use {
	u := a.used[owner]
	if d := now.Sub(u.At); d > 0 {
		u.Amount = max(0, u.Amount-float64(d)/float64(a.rate.Period)*float64(a.rate.Each))
	}
	u.At = now
	return u
}
