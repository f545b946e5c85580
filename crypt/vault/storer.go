package vault

import (
	"fmt"
	"slices"

	"palyra/internal/fault"
)

// Storer is the principal that stores a value. A secret counts as its maker's: who stored its first
// version, or its first since it was removed.
type Storer struct {
	Name  string // "": one that isn't recorded
	Most  int    // secrets of its making that the vault may have; 0: no bound
	Spare int    // places among MaxSecrets that it leaves to others
}

// room returns the secret's place in the index, which it makes if there is none. One that was
// removed keeps its place, and its last number, until its maker or the vault needs the place: the
// highest of the forgotten numbers is the one that new secrets begin behind, so that no version's
// comes again.
func (i *index) room(op string, r Ref, by Storer) (*secret, error) {
	at, ok := i.find(r)
	if ok && (len(i.Secrets[at].Versions) > 0 || i.Secrets[at].By == by.Name) {
		return &i.Secrets[at], nil
	}
	if by.Most > 0 && i.madeBy(by.Name) >= by.Most {
		if i.forget(r, func(s *secret) bool { return s.By == by.Name }); i.madeBy(by.Name) >= by.Most {
			return nil, fault.New(fault.Unavailable, "quota", op, fmt.Errorf("%.80s has made %d secrets, its most", by.Name, by.Most))
		}
	}
	if most := MaxSecrets - by.Spare; !ok && len(i.Secrets) >= most {
		if i.forget(r, func(*secret) bool { return true }); len(i.Secrets) >= MaxSecrets {
			return nil, fault.New(fault.Refused, "too_large", op, fmt.Errorf("the vault has %d secrets, its most", MaxSecrets))
		} else if len(i.Secrets) >= most {
			return nil, fault.New(fault.Unavailable, "quota", op, fmt.Errorf("the vault has %d secrets, and the other places are its owners'", most))
		}
	}
	if at, ok = i.find(r); !ok {
		i.Secrets = slices.Insert(i.Secrets, at, secret{Ref: r, Last: i.Floor})
	}
	i.Secrets[at].By = by.Name
	return &i.Secrets[at], nil
}

func (i *index) madeBy(name string) (n int) {
	for j := range i.Secrets {
		if i.Secrets[j].By == name {
			n++
		}
	}
	return n
}

// forget drops the places of removed secrets, but that of keep.
func (i *index) forget(keep Ref, which func(*secret) bool) {
	i.Secrets = slices.DeleteFunc(i.Secrets, func(s secret) bool {
		if len(s.Versions) > 0 || s.Ref == keep || !which(&s) {
			return false
		}
		i.Floor = max(i.Floor, s.Last)
		return true
	})
}
