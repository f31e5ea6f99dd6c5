package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hutch-sandbox/hutch/agent/model"
	"github.com/hutch-sandbox/hutch/agent/model/fantasy"
)

// providers makes models as the hutch-agent command does.
func providers(name, _ string, getenv func(string) string) (model.Model, error) {
	return fantasy.New(name, fantasy.Options{Getenv: getenv})
}

// TestUsage gives every command and option something wrong. It must say so in
// one line that names the field and the remedy, end with ExitUsage, print
// nothing else, and not touch the runtime.
func TestUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("noname.env", "A=1\n=2\n")
	write("space.env", "A B=1\n")
	write("latin1.env", "A=\xe9\n")

	write("short.token", "secret\n")
	write("say.json", `{"steps": [{"text": "Hello."}]}`)

	tests := []struct {
		args string // separated by spaces; "''" is an empty argument
		want string // in the line: the field, and after | the remedy
	}{
		{"frobnicate", `"frobnicate"|hutch help`},
		{"rum", `"rum"|did you mean "run"`},
		{"--nope", "--nope|hutch --help"},
		{"-x ps", "-x|hutch --help"},
		{"--home", "--home|hutch --help"},
		{"--home= ps", "--home|leave the flag out"},
		{"help nope", `"nope"|hutch help`},
		{"help ps more", `"more"|hutch ps --help`},

		{"run --nope", "--nope|hutch run --help"},
		{"run -m lots", "--memory|for example 512m"},
		{"run -m -1", "--memory|for example 512m"},
		{"run -m 99999999999999t", "--memory|for example 512m"},
		{"run -m 1k", "memory|at least 16 MiB"},
		{"run --disk nan", "--disk|for example 512m"},
		{"run --disk 15m", "disk|at least 16 MiB"},
		{"run --cpus two", "--cpus|0.5 or 2"},
		{"run --cpus 0", "--cpus|0.5 or 2"},
		{"run --cpus NaN", "--cpus|0.5 or 2"},
		{"run --cpus 0.001", "cpus|at least 0.01"},
		{"run --pids 0", "--pids|at least 1"},
		{"run --pids many", "--pids|at least 1"},
		{"run --pids-limit -5", "--pids-limit|at least 1"},
		{"run --pids 5 --pids-limit 5", "--pids-limit|leave out one"},
		{"run --pids 99999999", "pids|1 to 4194304"},
		{"run --name -bad", "name|letters, digits"},
		{"run --name=", "--name|leave the flag out"},
		{"run --label =x", "--label|key=value"},
		{"run --hostname a_b", "hostname|letters, digits"},
		{"run -e =x", "--env|KEY=value"},
		{"run -e ''", "--env|KEY=value"},
		{"run --env-file missing.env", "--env-file|can be read"},
		{"run --env-file noname.env", "line 2|KEY=value"},
		{"run --env-file space.env", "line 1|KEY=value"},
		{"run --env-file latin1.env", "line 1|with -e"},
		{"run --env-file .", "--env-file|can be read"},
		{"run -w relative", "dir|absolute path"},
		{"run -u :0", "user|uid:gid"},
		{"run -v nothing", "--volume|volume-name:box-path"},
		{"run -v a:b:ro:x", "--volume|volume-name:box-path"},
		{"run -v a:b", "--volume|start it with /"},
		{"run -v a:/b:rx", "--volume|ro or rw"},
		{"run -v ./missing:/b", "--volume|create it first"},
		{"run -v a:/b -v c:/b", "volumes[1]|target of its own"},
		{"run -v a:/", "volumes[0]|folder below /"},
		{"run -v a:/proc/x", "volumes[0]|another path"},
		{"run --net lan", "--net|off, internet, all"},
		{"run --allow https://pypi.org", "--allow|pypi.org:443"},
		{"run --allow *", "--allow|internet"},
		{"run --allow 10.1.2.3/8", "--allow|write 10.0.0.0/8"},
		{"run --net off --allow a.b", "network.allow|leave the preset out"},
		{"run --deny a.b", "network.deny|preset"},
		{"run --allow host.hutch.internal", "network.allow[0]|needs a port"},
		{"run -p 80", "--publish|HOST:BOX"},
		{"run -p 8000-8001:80", "--publish|different lengths"},
		{"run -p 70000:80", "--publish|1 to 65535"},
		{"run -p 80:80 -p 80:81", "ports[1]|a host port of its own"},
		{"run --link db", "--link|NAME=BOX:PORT"},
		{"run --secret K", "--secret|NAME@HOST"},
		{"run --secret K=value@a.b", "--secret|env:VAR"},
		{"run --secret NOT_SET@a.b --allow a.b", "--secret|is not set"},
		{"run --secret K=file:nope@a.b --allow a.b", "--secret|can be read"},
		{"net set --net lan web", "--net|off, internet, all"},
		{"net set --deny a.b web", "network.deny|preset"},
		{"net explain", "TARGET|hutch net explain --help"},
		{"net explain --allow a.b web a.b", "BOX|leave out"},
		{"net explain x:99999", "x:99999|host:port"},
		{"net frobnicate", `"frobnicate"|hutch net --help`},
		{"net publish web", "PORT|hutch net publish --help"},
		{"net publish web x", "PORT|HOST:BOX"},
		{"net secret web K=v", "NAME|file:PATH"},
		{"start --secret K=v web", "--secret|file:PATH"},
		{"start --secret NOT_SET web", "--secret|is not set"},
		{"forward web", "PORT|hutch forward --help"},
		{"forward web 80/udp", "PORT|write HOST:BOX"},
		{"forward web 80:80/udp", "PORT|net publish"},
		{"netlog", "BOX|hutch netlog --help"},
		{"netlog --since x web", "--since|for example 10m"},
		{"run --restart sometimes", "--restart|on-failure:N"},
		{"run --restart unless-stopped", "--restart|on-failure:N"},
		{"run --restart on-failure:x", "--restart|on-failure:N"},
		{"run --restart always:3", "--restart|on-failure:N"},
		{"run --restart always", "--restart|add -d"},
		{"run -d --rm --restart always", "--rm|leave out one"},
		{"run --stop-timeout soon", "--stop-timeout|1m30s"},
		{"run --stop-timeout 48h", "stopTimeout|1ms to 24h"},
		{"run --timeout 0", "--timeout|more than zero"},
		{"run --timeout x", "--timeout|1m30s"},
		{"run -d --timeout 1s", "--timeout|leave out one"},
		{"run --engine docker", "--engine|auto, gvisor, vm"},
		{"run --pull often", "--pull|missing, always, never"},
		{"run --platform windows", "platform|linux/arm64"},
		{"run --detach-keys ctrl-1", "--detach-keys|ctrl-<letter>"},
		{"run --detach-keys ctrl-p,", "--detach-keys|ctrl-<letter>"},
		{"run --rm=maybe", "--rm|true or false"},
		{"run --idle", "--idle|add -d"},
		{"run -d --idle alpine sh", "--idle|leave out one"},
		{"run -d --idle -i", "--idle|hutch exec"},
		{"run --json", "--json|add -d"},
		{"run -it", "-t|from a terminal"},
		{"run ''", "IMAGE|builtin image"},
		{"run --entrypoint ''", "--entrypoint|add a command"},
		{"run -- ''", "COMMAND|name a program"},
		{"create --timeout 1s", "--timeout|hutch create --help"},
		{"create -m x", "--memory|for example 512m"},
		{"create --idle --entrypoint x", "--idle|leave out one"},

		{"exec", "BOX and COMMAND|hutch exec --help"},
		{"exec box", "BOX and COMMAND|hutch exec --help"},
		{"exec box --", "COMMAND|hutch exec --help"},
		{"exec box ''", "COMMAND|name a program"},
		{"exec '' true", "BOX|hutch ps -a"},
		{"exec -d -i box true", "-i|leave out"},
		{"exec --json box true", "--json|add -d"},
		{"exec -it box sh", "-t|from a terminal"},
		{"exec --timeout never box true", "--timeout|1m30s"},
		{"exec -w '' box true", "--workdir|leave the flag out"},
		{"exec -u '' box true", "--user|leave the flag out"},
		{"exec --detach-keys foo box true", "--detach-keys|ctrl-<letter>"},
		{"exec -e =1 box true", "--env|KEY=value"},

		{"attach", "BOX|hutch attach --help"},
		{"attach a b c", `"c"|hutch attach --help`},
		{"attach --json a", "--json|leave it out"},
		{"attach ''", "BOX|hutch ps -a"},
		{"start", "BOX|hutch start --help"},
		{"start -a a b", `"b"|name one box`},
		{"start -a --json a", "--json|leave out"},
		{"stop", "BOX|hutch stop --help"},
		{"stop -t -1 a", "--time|1m30s"},
		{"restart", "BOX|hutch restart --help"},
		{"restart -t soon a", "--time|1m30s"},
		{"kill", "BOX|hutch kill --help"},
		{"kill -s NOPE a", "--signal|TERM or HUP"},
		{"kill -s 65 a", "--signal|1 to 64"},
		{"rm", "BOX|hutch rm --help"},
		{"rename a", "BOX and NAME|hutch rename --help"},
		{"rename a b c", `"c"|hutch rename --help`},
		{"pause", "BOX|hutch pause --help"},
		{"unpause", "BOX|hutch unpause --help"},
		{"wait", "BOX|hutch wait --help"},
		{"ps extra", `"extra"|hutch ps --help`},
		{"ps --filter colour=red", "--filter|label=VALUE"},
		{"ps --filter label", "--filter|label=VALUE"},
		{"ps --filter status=asleep", "--filter|stopped or failed"},
		{"ps --format yaml", "--format|table, json"},
		{"inspect", "BOX|hutch inspect --help"},
		{"inspect -f {{ a", "--format|Go template"},
		{"logs", "BOX|hutch logs --help"},
		{"logs -n x a", "--tail|or \"all\""},
		{"logs --since yesterday a", "--since|for example 10m"},
		{"top", "BOX|hutch top --help"},
		{"top a b", `"b"|hutch top --help`},
		{"stats --nope", "--nope|hutch stats --help"},
		{"events x", `"x"|hutch events --help`},
		{"events --filter type=box", "--filter|box=VALUE"},

		{"cp a", "source and destination|hutch cp --help"},
		{"cp a b", `neither "a" nor "b"|BOX:PATH`},
		{"cp a:/x b:/y", "copy to this machine|hutch cp -"},
		{"cp a: .", "PATH|BOX:PATH"},
		{"cp '' a:/", "PATH|BOX:PATH"},
		{"cp a/b:c ./d", "neither|BOX:PATH"},

		{"pull", "IMAGE|hutch pull --help"},
		{"pull ''", "IMAGE|python:3.12-slim"},
		{"images a b", `"b"|hutch images --help`},
		{"image", "COMMAND|hutch image --help"},
		{"image nope", `"nope"|hutch image --help`},
		{"image ls a b", `"b"|hutch image ls --help`},
		{"image load -i missing.tar", "--input|OCI layout folder"},
		{"image load x", `"x"|hutch image load --help`},
		{"image save", "IMAGE|hutch image save --help"},
		{"image save --format zip a", "--format|oci, docker"},
		{"image save --json a", "--json|image inspect"},
		{"image import a.tar", "FILE and NAME|hutch image import --help"},
		{"image import missing.tar a", "FILE|standard input"},
		{"image import - ''", "NAME|name the image"},
		{"image import -c RUN - a", "--change|CMD"},
		{"image import -c VOLUME=/x - a", "--change|CMD"},
		{"image import -c STOPSIGNAL - a", "--change|CMD"},
		{"image tag a", "IMAGE and NAME|hutch image tag --help"},
		{"image rm", "IMAGE|hutch image rm --help"},
		{"image inspect", "IMAGE|hutch image inspect --help"},
		{"image prune", "--force|add -f"},
		{"image prune x", `"x"|hutch image prune --help`},
		{"image debian", "NAME|hutch image debian --help"},
		{"image debian --include a,,b x", "--include|python3,git"},
		{"image debian ''", "NAME|name the image"},
		{"image pull", "IMAGE|hutch image pull --help"},

		{"agent x", `"x"|hutch agent --help`},
		{"agent -p ''", "--prompt|say what is to be done"},
		{"agent --dir .:rx -p x", "--dir|PATH:ro"},
		{"agent --dir :ro -p x", "--dir|.:copy"},
		{"agent --ref a --new -p x", "--new|leave out one"},
		{"agent --ref a --image b -p x", "--image|add --new"},
		{"agent --ref a --allow b.c -p x", "--allow|add --new"},
		{"agent --ref hutch: -p x", "--ref|hutch ps -a"},
		{"agent --model nope -p x", "--model|write provider:model"},
		{"agent --model nope:x -p x", "--model|there are anthropic"},
		{"agent -p x", "--model|set ANTHROPIC_API_KEY"},
		{"agent --model openai:gpt-5 -p x", "--model|set OPENAI_API_KEY"},
		{"agent --model scripted:missing.json -p x", "--model|name a script"},
		{"agent --model scripted:noname.env -p x", "--model|name a script"},
		{"agent --model scripted:say.json", "--prompt|on standard input"},
		{"agent --model scripted:say.json --timeout 0 -p x", "--timeout|more than zero"},
		{"agent --model scripted:say.json --resume noname.env -p x", "--resume|hutch agent' wrote"},
		{"agent --model scripted:say.json --resume no/such.json -p x", "--resume|create it first"},
		{"agent --model scripted:say.json --dir missing -p x", "--dir|name a folder that exists"},
		{"agent --model scripted:say.json --dir say.json -p x", "--dir|is no folder"},
		{"agent apply ''", "BOX|hutch ps -a"},
		{"agent apply --nope", "--nope|hutch agent apply --help"},

		{"mcp x", `"x"|hutch mcp --help`},
		{"mcp --tools none", "--tools|coder, all"},
		{"mcp --listen 7777", "--listen|127.0.0.1:7777"},
		{"mcp --listen 0.0.0.0:0", "--listen|add --token-file"},
		{"mcp --listen 300.0.0.1:0", "--listen|choose another address"},
		{"mcp --token-file x", "--token-file|add --listen"},
		{"mcp --listen :0 --token-file missing", "--token-file|can be read"},
		{"mcp --listen :0 --token-file short.token", "--token-file|16 or more"},
		{"mcp --rm --ref a", "--rm|leave out one"},
		{"mcp --json", "--json|leave it out"},
		{"mcp --ref a --image b", "--image|leave it out"},
		{"mcp --dir missing", "--dir|name a folder that exists"},

		{"info x", `"x"|hutch info --help`},
		{"doctor x", `"x"|hutch doctor --help`},
		{"version x", `"x"|hutch version --help`},
		{"completion", "SHELL|hutch completion --help"},
		{"completion tcsh", "SHELL|bash, zsh"},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(tt.args)
			for i, a := range args {
				args[i] = strings.ReplaceAll(a, "''", "")
			}
			var stdout, stderr bytes.Buffer
			code := Main(t.Context(), App{Args: args, Dir: dir, Stdout: &stdout, Stderr: &stderr, Open: noRuntime(t), Models: providers})
			if code != ExitUsage {
				t.Errorf("status %d, want %d", code, ExitUsage)
			}
			if stdout.Len() > 0 {
				t.Errorf("unexpected output %q", stdout.String())
			}
			line := stderr.String()
			if !strings.HasPrefix(line, "hutch: ") || strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
				t.Errorf("not one line: %q", line)
			}
			field, remedy, _ := strings.Cut(tt.want, "|")
			if !strings.Contains(line, field) || !strings.Contains(line, remedy) {
				t.Errorf("%q\ndoes not have the field %q and the remedy %q", line, field, remedy)
			}
		})
	}
}
