package main

import (
	"strings"
	"testing"
	"time"

	"berth/control/pki"
)

func TestKubeconfigSubject(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name     string
		user     string
		groups   []string
		validity time.Duration
		want     string
		wantErr  string
	}{
		{name: "the administrator", validity: time.Hour, want: "berth-admin in kubeadm:cluster-admins"},
		{name: "a user without groups", user: "jane", validity: time.Hour, want: "jane in "},
		{name: "a user with groups", user: "jane", groups: []string{"a", "b"}, validity: time.Hour,
			want: "jane in a,b"},
		{name: "groups without a user", groups: []string{"a"}, validity: time.Hour, wantErr: "requires --user"},
		{name: "system:masters", user: "jane", groups: []string{"a", pki.MastersGroup}, validity: time.Hour,
			wantErr: "super-admin.kubeconfig"},
		{name: "an empty group", user: "jane", groups: []string{""}, validity: time.Hour, wantErr: "empty name"},
		{name: "the name of the server at nodes", user: pki.KubeletClientUser, validity: time.Hour,
			wantErr: "rejects"},
		{name: "a name with a space", user: "jane ", validity: time.Hour, wantErr: "space"},
		{name: "no validity", user: "jane", wantErr: "must be positive"},
	} {
		got, err := kubeconfigSubject(row.user, row.groups, row.validity)
		if row.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), row.wantErr) {
				t.Errorf("%s: got error %v, want %q", row.name, err, row.wantErr)
			}
			continue
		}
		if is := got.Name + " in " + strings.Join(got.Groups, ","); err != nil || is != row.want ||
			got.Duration != row.validity || len(got.ExtKeyUsages) != 1 {
			t.Errorf("%s: got %s for %s, %v, want %s", row.name, is, got.Duration, err, row.want)
		}
	}
	if got := kubeconfigCommand().Flag("validity-period").DefValue; got != "24h0m0s" {
		t.Errorf("got default validity %s, want a day", got)
	}
}
