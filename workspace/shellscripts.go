package workspace

// The scripts of shellFiles. They keep to POSIX sh and take their data as
// arguments, never as text of the script. Faults of paths leave with exit
// statuses of their own, so that a utility's failure is never taken for one.
const (
	exitMissing    = 102 // 100+ENOENT
	exitPermission = 113 // 100+EACCES
	exitExists     = 117 // 100+EEXIST
	exitNotDir     = 120 // 100+ENOTDIR
	exitIsDir      = 121 // 100+EISDIR
	exitIrregular  = 122 // 100+EINVAL: neither file nor directory
	exitLoop       = 98  // too many symbolic links; 100+ELOOP would be a signal's
	exitDamaged    = 99  // data did not arrive whole
)

// shellMiss is a function that leaves for a path which is not there: the
// nearest ancestor that exists says why.
const shellMiss = `
miss() {
	q=$1
	while :; do
		q=${q%/*}
		[ -n "$q" ] || exit 102
		if [ -d "$q" ]; then [ -x "$q" ] && exit 102; exit 113; fi
		if [ -e "$q" ]; then exit 120; fi
	done
}
`

// statScript prints "d", "f SIZE", "f -" (the size cannot be read) or "o".
const statScript = shellMiss + `
if [ -d "$1" ]; then echo d
elif [ -f "$1" ]; then
	n=$(wc -c < "$1" 2>/dev/null) || n=-
	echo "f $n"
elif [ -e "$1" ]; then echo o
elif [ -h "$1" ]; then exit 102
else miss "$1"
fi
`

// readScript prints 512 KiB of the file $1, from the block $2, which has 64 KiB.
// It opens nothing that might make it wait.
const readScript = shellMiss + `
[ -f "$1" ] || { [ -d "$1" ] && exit 121; [ -e "$1" ] && exit 122; miss "$1"; }
[ -r "$1" ] || exit 113
dd if="$1" bs=65536 skip="$2" count=8 2>/dev/null | base64
`

// listScript prints what is in the directory $1, each name preceded by d or f
// and followed by NUL, and find's status after all that.
const listScript = shellMiss + `
[ -d "$1" ] || { [ -e "$1" ] && exit 120; miss "$1"; }
[ -r "$1" ] && [ -x "$1" ] || exit 113
{
	find "$1/." ! -name . -prune -exec /bin/sh -c '
		for f do
			if [ -d "$f" ]; then k=d; else k=f; fi
			printf "%s%s\000" "$k" "${f##*/}"
		done' sh {} +
	printf "end%s" "$?"
} | base64
`

// mkdirFunction makes a directory and its parents one by one, because what
// mkdir says of a parent that is a file differs from place to place. $2 is the
// status to leave with when the last one is a file.
const mkdirFunction = `
mkdirs() {
	q= rest=${1#/}
	while [ -n "$rest" ]; do
		case $rest in
		*/*) e=${rest%%/*} rest=${rest#*/} ;;
		*) e=$rest rest= ;;
		esac
		up=${q:-/} q=$q/$e
		[ -d "$q" ] && continue
		if [ -e "$q" ] || [ -h "$q" ]; then
			[ -n "$rest" ] && exit 120
			exit "$2"
		fi
		[ -x "$up" ] && [ -w "$up" ] || exit 113
		mkdir "$q" || [ -d "$q" ] || exit 1
	done
}
`

const mkdirScript = mkdirFunction + `mkdirs "$1" 117`

// beginScript makes ready to write the file $1, in the directory $2: the base64
// text $4 is the beginning of the temporary file $3.
const beginScript = mkdirFunction + `
mkdirs "$2" 120
if [ -d "$1" ]; then exit 121
elif [ -f "$1" ]; then [ -w "$1" ] || exit 113
elif [ -e "$1" ]; then exit 122
fi
[ -x "$2" ] && [ -w "$2" ] || exit 113
umask 077
set -C
printf %s "$4" > "$3"
`

const appendScript = `printf %s "$2" >> "$1"`

// commitScript gives the content to the file $1: $2 holds it in base64, $4
// characters long; $3 becomes the file, $5 bytes long. What exists keeps its
// mode by being copied first.
const commitScript = `
[ "$(wc -c < "$2")" -eq "$4" ] || exit 99
if [ -f "$1" ]; then cp -p "$1" "$3" || exit 1
else : > "$3" || exit 1
fi
base64 -d < "$2" > "$3" || exit 1
[ "$(wc -c < "$3")" -eq "$5" ] || exit 99
[ -d "$1" ] && exit 121
mv -f "$3" "$1" || exit 1
rm -f "$2"
`

const discardScript = `rm -f "$1" "$2"`

const removeScript = shellMiss + `
[ -e "$1" ] || [ -h "$1" ] || miss "$1"
rm -rf "$1" || {
	[ -w "${1%/*}/" ] || exit 113
	exit 1
}
`

const existsScript = `[ -e "$1" ]`

// realpathScript prints the path in base64 and its length.
const realpathScript = `
rest=$1 d= n=0
while [ -n "$rest" ]; do
	case $rest in
	*/*) e=${rest%%/*} rest=${rest#*/} ;;
	*) e=$rest rest= ;;
	esac
	case $e in
	'' | .) continue ;;
	..) d=${d%/*}; continue ;;
	esac
	if [ -h "$d/$e" ]; then
		n=$((n + 1))
		[ "$n" -le 40 ] || exit 98
		t=$(readlink "$d/$e" && printf x) || exit 1
		t=${t%x}
		t=${t%?}
		case $t in /*) d= ;; esac
		rest=$t/$rest
	else
		d=$d/$e
	fi
done
printf %s "${d:-/}" | base64
printf "length%s" "$(printf %s "${d:-/}" | wc -c)"
`

// toolsScript prints those of its arguments that are no commands.
const toolsScript = `for t do command -v "$t" > /dev/null 2>&1 || echo "$t"; done`
