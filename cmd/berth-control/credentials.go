package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
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

func rotateAuthorityCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "rotate-ca",
		Short: "Rotate the key of the certificate authority",
		Long: `Create a certificate authority with a new key. Restart the server afterwards: it issues its own
certificates and those of nodes with the new authority. Clients and nodes keep their access, because the server still
trusts the former authority, and the former authority has signed the new one: clients that trust only the former one
trust the new one by that.

The command prints the files of the former authority. Remove them, and restart the server, when no client needs them
any more: the documentation has the steps.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			retired, err := pki.RotateAuthority(filepath.Join(dataDir, "pki"), time.Now)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\nare the files of the former authority. Restart the server: "+
				"it uses the new authority and trusts both.\n", strings.Join(retired, "\n"))
			return err
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", control.Default().DataDir, "data directory of the server")
	return cmd
}
