package main

import (
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"berth/control"
	"berth/control/pki"
)

// kubeconfigValidity is the default validity of a certificate in a new kubeconfig. It is short, because a certificate
// cannot be revoked.
const kubeconfigValidity = 24 * time.Hour

// kubeconfigOptions holds the flags of kubeconfig.
type kubeconfigOptions struct {
	dataDir, server, user string
	groups                []string
	validity              time.Duration
}

func kubeconfigCommand() *cobra.Command {
	o := kubeconfigOptions{}
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a kubeconfig",
		Long: `Print a kubeconfig with a new client certificate, signed by the certificate authority in the data
directory. --user and --groups name the user. The permissions come from roles and bindings for this user and these
groups. Without --user the certificate is for the administrator, whose permissions come from the ClusterRoleBinding
kubeadm:cluster-admins.

A client certificate cannot be revoked before it expires, only its permissions can: keep --validity-period short.`,
		Args: cobra.NoArgs,
		Example: `  berth-control kubeconfig --server https://control.example.com:6443 > ~/.kube/config
  berth-control kubeconfig --user jane --groups developers --validity-period 8h`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := o.issue()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.dataDir, "data-dir", control.Default().DataDir, "data directory of the server")
	f.StringVar(&o.server, "server", "", "URL by which clients reach the server (default: the server in "+
		"admin.kubeconfig)")
	f.StringVar(&o.user, "user", "", "user name (default: the administrator)")
	f.StringSliceVar(&o.groups, "groups", nil, "groups of the user, separated by commas; may be repeated")
	f.DurationVar(&o.validity, "validity-period", kubeconfigValidity, "validity period of the certificate")
	addFormerFlag(f, "valid", "validity-period")
	addFormerFlag(f, "group", "groups")
	return cmd
}

// issue returns the kubeconfig.
func (o *kubeconfigOptions) issue() ([]byte, error) {
	subject, err := kubeconfigSubject(o.user, o.groups, o.validity)
	if err != nil {
		return nil, err
	}
	pkiDir := filepath.Join(o.dataDir, "pki")
	if _, err := os.Stat(filepath.Join(pkiDir, "ca.key")); err != nil {
		return nil, fmt.Errorf("data-dir: %s contains no certificate authority; has the server been started? %w",
			o.dataDir, err)
	}
	authority, err := pki.Open(pkiDir, time.Now)
	if err != nil {
		return nil, err
	}
	if o.server == "" {
		c, err := clientcmd.BuildConfigFromFlags("", filepath.Join(o.dataDir, "admin.kubeconfig"))
		if err != nil {
			return nil, fmt.Errorf("server: required: %w", err)
		}
		o.server = c.Host
	}
	cert, key, err := authority.Issue(subject)
	if err != nil {
		return nil, err
	}
	return authority.Kubeconfig(o.server, subject.Name, cert, key)
}

// kubeconfigSubject returns the subject of the certificate: the named user, or the administrator without a name.
func kubeconfigSubject(user string, groups []string, validity time.Duration) (pki.Subject, error) {
	subject := pki.AdminSubject()
	switch {
	case validity <= 0:
		return subject, errors.New("validity-period: must be positive")
	case user == "" && len(groups) > 0:
		return subject, errors.New("groups: requires --user")
	case slices.Contains(groups, pki.MastersGroup):
		return subject, fmt.Errorf("groups: %s cannot be limited by roles and bindings: in an emergency use "+
			"super-admin.kubeconfig in the data directory, otherwise %s", pki.MastersGroup, pki.AdminsGroup)
	case slices.Contains(groups, ""):
		return subject, errors.New("groups: contains an empty name")
	case user == pki.KubeletClientUser:
		return subject, fmt.Errorf("user: the server rejects %s, its own name in requests to nodes", user)
	case strings.TrimSpace(user) != user:
		return subject, fmt.Errorf("user: %q starts or ends with a space", user)
	}
	subject.Duration = validity
	if user != "" {
		subject = pki.Subject{Name: user, Groups: groups, Duration: validity,
			ExtKeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	}
	return subject, nil
}
