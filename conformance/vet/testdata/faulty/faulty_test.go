package faulty

import "testing"

func TestFaulty(t *testing.T) {
	t.Errorf("%d", "text")
	go func() { t.Fatal("ends another goroutine") }()
}
