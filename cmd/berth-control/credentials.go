package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/control"
	"berth/control/pki"
)

// clientOptions holds the flags of commands that connect to the running server.
type clientOptions struct{ dataDir, kubeconfig string }

func (r *clientOptions) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&r.dataDir, "data-dir", control.Default().DataDir, "data directory of the server on this host")
	f.StringVar(&r.kubeconfig, "kubeconfig", "", "administrator kubeconfig (default DATA-DIR/admin.kubeconfig)")
}

func (r *clientOptions) client() (*kubernetes.Clientset, *restclient.Config, error) {
	path := r.kubeconfig
	if path == "" {
		path = filepath.Join(r.dataDir, "admin.kubeconfig")
	}
	c, err := clientcmd.BuildConfigFromFlags("", path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%s does not exist: has the server been started, and is --data-dir correct?", path)
	}
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(c)
	return client, c, err
}

func kubeconfigCommand() *cobra.Command {
	var dataDir, server, name string
	var groups []string
	var validity time.Duration
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print a kubeconfig",
		Long: `Print a kubeconfig with a new client certificate, signed by the certificate authority in the data
directory. Without --user the certificate is for the administrator, a member of system:masters. A client certificate
cannot be revoked before it expires: keep --validity-period short for other users.`,
		Args: cobra.NoArgs,
		Example: `  berth-control kubeconfig --server https://control.example.com:6443 > ~/.kube/config
  berth-control kubeconfig --user jane --group developers --validity-period 720h`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pkiDir := filepath.Join(dataDir, "pki")
			if _, err := os.Stat(filepath.Join(pkiDir, "ca.key")); err != nil {
				return fmt.Errorf("data-dir: %s contains no certificate authority; has the server been started? %w",
					dataDir, err)
			}
			authority, err := pki.Open(pkiDir, time.Now)
			if err != nil {
				return err
			}
			if server == "" {
				c, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dataDir, "admin.kubeconfig"))
				if err != nil {
					return fmt.Errorf("server: required: %w", err)
				}
				server = c.Host
			}
			subject := pki.AdminSubject()
			if name != "" {
				subject.Name, subject.Groups = name, groups
			} else if len(groups) > 0 {
				return errors.New("group: requires --user")
			}
			subject.Duration = validity
			cert, key, err := authority.Issue(subject)
			if err != nil {
				return err
			}
			text, err := authority.Kubeconfig(server, subject.Name, cert, key)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&dataDir, "data-dir", control.Default().DataDir, "data directory of the server")
	f.StringVar(&server, "server", "", "URL by which clients reach the server (default: the server in "+
		"admin.kubeconfig)")
	f.StringVar(&name, "user", "", "user name (default: the administrator)")
	f.StringSliceVar(&groups, "group", nil, "group of the user; may be repeated")
	f.DurationVar(&validity, "validity-period", 365*24*time.Hour, "validity period of the certificate")
	addFormerFlag(f, "valid", "validity-period")
	return cmd
}

func rotateCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "rotate-account-key",
		Short: "Rotate the key that signs service account tokens",
		Long: `Retire the key that signs service account tokens. The server creates a new key at its next start.
Tokens signed with the old key stay valid until they expire, or until its file is removed and the server is restarted.
The command prints the name of that file. Remove it at once if the key is compromised, otherwise when its last token
has expired.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			former, err := pki.RetireServiceAccountKey(filepath.Join(dataDir, "pki"), time.Now())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(
				cmd.OutOrStdout(),
				"%s\nis the retired key. Restart the server: it creates a new key and accepts the tokens of both.\n",
				former,
			)
			return err
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", control.Default().DataDir, "data directory of the server")
	return cmd
}
