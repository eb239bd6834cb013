package images

import (
	"context"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// nginxConf matches the configuration of the upstream image: port 80, the default page, logs on stdout and
// stderr.
const nginxConf = `user nginx;
worker_processes 1;
error_log /var/log/nginx/error.log warn;
pid /run/nginx.pid;
events { worker_connections 1024; }
http {
    include /etc/nginx/mime.types;
    default_type application/octet-stream;
    access_log /var/log/nginx/access.log;
    sendfile on;
    keepalive_timeout 65;
    include /etc/nginx/conf.d/*.conf;
}
`

const nginxDefault = `server {
    listen 80;
    server_name localhost;
    location / {
        root /usr/share/nginx/html;
        index index.html index.htm;
    }
}
`

func nginx(ref string) recipe {
	return recipe{
		ref: ref,
		inputs: func(h hash.Hash) error {
			_, _ = io.WriteString(h, nginxConf+nginxDefault)
			return hashShells(h)
		},
		make: func(ctx context.Context, work string) (v1.Image, error) {
			base, top := tree{}, tree{}
			if err := base.bash(ctx); err != nil {
				return nil, err
			}
			root, err := unpackDebian(ctx, work, "nginx", "nginx-common")
			if err != nil {
				return nil, err
			}
			if err := top.nginx(root); err != nil {
				return nil, err
			}
			return build(v1.Config{
				Cmd:          []string{"nginx", "-g", "daemon off;"},
				Env:          []string{searchPath, "NGINX_VERSION=1.14.2-1~stretch"},
				ExposedPorts: map[string]struct{}{"80/tcp": {}},
				StopSignal:   "SIGTERM",
				WorkingDir:   "/",
			}, base, top)
		},
	}
}

func (t tree) nginx(root string) error {
	if err := t.program("/usr/sbin/nginx", root, "/"); err != nil {
		return err
	}
	for _, d := range []string{"/usr/share/nginx/html", "/etc/nginx"} {
		if err := t.copyDir(root, d); err != nil {
			return err
		}
	}
	t.text("/etc/nginx/nginx.conf", nginxConf)
	t.text("/etc/nginx/conf.d/default.conf", nginxDefault)
	t.text("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/bin/false\n"+
		"nginx:x:101:101:nginx:/var/lib/nginx:/bin/false\n")
	t.text("/etc/group", "root:x:0:\nnogroup:x:65534:\nnginx:x:101:\n")
	t.dir("/var/lib/nginx", 0o755)
	t.dir("/var/log/nginx", 0o755)
	t.symlink("/var/log/nginx/access.log", "/dev/stdout")
	t.symlink("/var/log/nginx/error.log", "/dev/stderr")
	return nil
}
