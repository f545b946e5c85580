package console

import "palyra/hub"

func (t *turn) host() error {
	d, err := may(t, hub.GetDoctor, hub.None{})
	if err != nil {
		return err
	}
	return t.show("host", "Host", d)
}
